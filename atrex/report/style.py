"""The style sheet and the one script of the HTML report. Both are constants: no report text enters them."""

STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #fff; --text: #1b2330; --muted: #5c6878; --line: #dde2e9; --soft: #eef1f5;
  --blue: #2563c9; --green: #1a7f4e; --red: #c0322b; --amber: #a86400; --violet: #7a3fb0; }
@media (prefers-color-scheme: dark) { :root {
  --page: #10141b; --card: #181e28; --text: #e4e9f0; --muted: #93a0b2; --line: #2b3442; --soft: #222a36;
  --blue: #6ea8ff; --green: #4cc38a; --red: #ff7b72; --amber: #e3a84a; --violet: #c297ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px 48px; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 14px; margin-bottom: 18px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 16px; margin: 0 0 10px; }
header p { margin: 0; color: var(--muted); }
code { font: 13px/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px;
  margin-top: 16px; overflow-x: auto; }
.badge { font-size: 12px; font-weight: 650; letter-spacing: .05em; padding: 2px 10px; border-radius: 99px;
  border: 1px solid currentColor; align-self: center; }
.pass { color: var(--green); } .fail { color: var(--red); } .warn { color: var(--amber); }
.error { color: var(--violet); } .muted { color: var(--muted); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; }
.tile b { display: block; font-size: 25px; font-weight: 650; line-height: 1.25; }
.tile span { display: block; color: var(--muted); font-size: 13px; }
.gates { display: flex; flex-wrap: wrap; gap: 6px 8px; margin-bottom: 12px; }
.gates span { font-size: 13px; padding: 1px 9px; border-radius: 6px; background: var(--soft); }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--muted); font-weight: 550; border-bottom: 1px solid var(--line);
  vertical-align: bottom; }
th, td { padding: 5px 10px 5px 0; }
td { border-bottom: 1px solid var(--soft); vertical-align: top; }
.n { text-align: right; white-space: nowrap; } .range { color: var(--muted); font-size: 12px; }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid var(--blue); }
th[aria-sort=ascending] button::after { content: " ▲"; font-size: 9px; }
th[aria-sort=descending] button::after { content: " ▼"; font-size: 9px; }
.id { white-space: nowrap; } td:last-child, th:last-child { padding-right: 0; }
.bar { display: inline-block; height: 9px; margin-right: 7px; border-radius: 2px; background: var(--red);
  opacity: .7; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(480px, 1fr)); gap: 16px; }
.plots section { min-width: 0; }
svg { display: block; width: 100%; height: auto; font-size: 12px; }
svg text { fill: var(--muted); } svg .grid { stroke: var(--soft); } svg .axis { stroke: var(--line); }
svg .sol { stroke: var(--green); fill: none; stroke-width: 1.8; }
svg .attainable { stroke: var(--amber); fill: none; stroke-width: 1.8; stroke-dasharray: 6 4; }
svg .ours { fill: var(--blue); stroke: var(--blue); }
svg .eager { fill: none; stroke: var(--muted); stroke-width: 1.4; }
svg .one { stroke: var(--muted); stroke-dasharray: 3 4; } svg .episode { fill: var(--violet); opacity: .13; }
svg .won { fill: var(--green); stroke: var(--green); } svg .lost { fill: var(--muted); stroke: var(--muted); }
svg .bad { stroke: var(--red); stroke-width: 1.6; fill: none; }
svg .guess { stroke: var(--amber); stroke-width: 1.4; fill: none; }
.legend { color: var(--muted); font-size: 12.5px; margin: 8px 0 0; }
details summary { cursor: pointer; color: var(--muted); margin-top: 10px; }
ul { margin: 0; padding-left: 20px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin: 0; font-size: 13.5px; }
dt { color: var(--muted); } dd { margin: 0; overflow-wrap: anywhere; }
"""

SCRIPT = """
for (const button of document.querySelectorAll("th button")) button.onclick = () => {
  const head = button.parentElement, body = head.closest("table").tBodies[0];
  const up = head.getAttribute("aria-sort") === "descending", column = head.cellIndex;
  const key = row => row.cells[column].dataset.v ?? row.cells[column].textContent;
  const order = (a, b) => {
    const [x, y] = [key(a), key(b)], [m, n] = [parseFloat(x), parseFloat(y)];
    return isNaN(m) || isNaN(n) ? x.localeCompare(y) : m - n;
  };
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  body.append(...[...body.rows].sort((a, b) => up ? order(a, b) : order(b, a)));
};
"""
