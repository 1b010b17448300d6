"""Command-line agents, `claude-code` and `codex`, at work in a prepared directory (docs/cli_agents.md)."""
