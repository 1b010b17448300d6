#!/usr/bin/env bash
# What must be seen on an H200, in calls of at most ten minutes. Run from the repository root
# with the machine's own python3 (torch 2.11, triton 3.6). What it lacks is taken from .whl/ and .ptxas/, if they are
# there: benchmarks/carry.sh makes them.
#
#   benchmarks/h200.sh optimize      # the main job, at most 8 minutes: report, ledger and best kernel into $OUT
#   benchmarks/h200.sh fit           # inputs, reference and oracle of all 440 cases
#   benchmarks/h200.sh control       # eager PyTorch through the gates of all operators
#   benchmarks/h200.sh audit         # the task audit on production shapes, CASES an operator
#   benchmarks/h200.sh bench         # AGENT=eager or compile over all 440 cases, at most 10 minutes (ARGS: more)
#   benchmarks/h200.sh third         # liger-kernel, fla-core, flag-gems through the gates (OPS, LEVEL, JOBS, ARGS)
#   benchmarks/h200.sh fallbacks     # the labelled files of tests/fallbacks, read and run
#   benchmarks/h200.sh calibrate     # honest kernels and mutants (ARGS: --op rms_norm --only honest …), JOBS at a time
#   benchmarks/h200.sh sweep         # verdicts with every error bound times 1/4 to 8, JOBS at a time
#   benchmarks/h200.sh repeat        # honest kernels judged again and again (ARGS: --match chunk_loop --times 200 …)
#   benchmarks/h200.sh profiles      # what ncu and Kineto say of some kernels: fixtures of tests/agent/profiling
#   benchmarks/h200.sh traces        # record tests/traces/recorded anew; with two GPUs also a trace of two ranks
#   benchmarks/h200.sh landscape     # kernels with tunables, recorded for benchmarks/ablation.py (OPS, PER_OP, ARGS)
#   benchmarks/h200.sh live          # search against random search on OPS, PER_OP seconds each, on every GPU there is
#   benchmarks/h200.sh cheats        # tests of dishonest kernels, foreign kernels, gradients
#   benchmarks/h200.sh gates         # honest kernels and mutants, isolation and GPU tests: tables into $OUT
set -euo pipefail
out=${OUT:-/tmp/h200}
mkdir -p "$out"
if [ -d .whl ] && [ ! -d /tmp/site ]; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl
fi
export PYTHONPATH="/tmp/site:$PWD" ATREX_HOME=/tmp/atrex-home COLUMNS=150
if [ -f .ptxas/ptxas.xz ]; then  # Triton 3.6's own is wrong on Hopper (docs/results/ptxas-12.8.md)
    python3 -c "import lzma, shutil; shutil.copyfileobj(lzma.open('.ptxas/ptxas.xz'), open('/tmp/ptxas', 'wb'))"
    chmod 755 /tmp/ptxas
    export TRITON_PTXAS_PATH=/tmp/ptxas
fi
case ${1:-optimize} in
    optimize)
        python3 -m atrex doctor | tee "$out/doctor.txt"
        python3 -m atrex calibrate --device cuda --json | tee "$out/calibration.json"
        time python3 -m atrex optimize --op rmsnorm --device cuda --budget "${BUDGET:-240s}" --seed "${SEED:-1}" \
            --runs /tmp/runs 2>&1 | tee "$out/optimize.txt"
        cp /tmp/runs/*/report.md /tmp/runs/*/report.json /tmp/runs/*/best.py /tmp/runs/*/ledger.jsonl "$out/"
        ;;
    fit)
        python3 -u benchmarks/feasibility.py ${OPS:-} --output "$out/feasibility.md"
        ;;
    control)
        time python3 -u benchmarks/negative_control.py ${OPS:-} --device cuda --jobs "${JOBS:-8}" \
            --output "$out/control.md" | tee "$out/control.txt"
        ;;
    audit)
        time python3 -u -m atrex audit-tasks --device cuda --scale full --cases "${CASES:-2}" \
            --output "$out/audit.md" 2>&1 | tee "$out/audit.txt"
        ;;
    bench)
        time python3 -u -m atrex bench --agent "${AGENT:-eager}" --device cuda --budget "${BUDGET:-9m}" \
            --runs /tmp/runs ${ARGS:-} 2>&1 | tee "$out/bench.txt" || failed=$?  # a bench with failures still has its report
        cp /tmp/runs/*/report.md /tmp/runs/*/report.json /tmp/runs/*/ledger.jsonl "$out/"
        exit "${failed:-0}"
        ;;
    third)
        python3 -m compileall -q -j 0 /tmp/site/flag_gems /tmp/site/fla /tmp/site/liger_kernel /tmp/site/sqlalchemy || true
        time python3 -u benchmarks/third_party.py ${OPS:-} --device cuda --level "${LEVEL:-screen}" \
            --jobs "${JOBS:-8}" ${ARGS:-} --output "$out/third_party.md" 2>&1 | tee "$out/third_party.txt"
        ;;
    fallbacks)
        time python3 -u benchmarks/fallback_labels.py --dynamic --device cuda --jobs "${JOBS:-8}" \
            ${ARGS:-} --output "$out/fallbacks${NAME:-}.md" 2>&1 | tee "$out/fallbacks${NAME:-}.txt"
        ;;
    calibrate)
        time python3 -u benchmarks/calibration.py --device cuda --jobs "${JOBS:-6}" ${ARGS:-} \
            --output "$out/calibration.md" 2>&1 | tee "$out/calibration.txt"
        ;;
    sweep)
        time python3 -u benchmarks/sweep.py --device cuda --jobs "${JOBS:-8}" ${ARGS:-} \
            --output "$out/sweep.md" 2>&1 | tee "$out/sweep.txt"
        ;;
    repeat)
        time python3 -u benchmarks/repeat.py --device cuda --jobs "${JOBS:-8}" ${ARGS:-} \
            --output "$out/repeat.md" 2>&1 | tee "$out/repeat.txt"
        ;;
    profiles)
        time python3 -u benchmarks/profiles.py ${ARGS:-} --output "$out/profiles.json" 2>&1 | tee "$out/profiles.txt"
        ;;
    traces)
        [ "$(nvidia-smi -L | wc -l)" -lt 2 ] || torchrun --nproc-per-node 2 tests/traces/record.py --output /tmp/recorded
        python3 tests/traces/record.py --output /tmp/recorded
        tar czf "$out/recorded.tgz" -C /tmp recorded
        ;;
    landscape)
        time python3 -u benchmarks/landscape.py ${OPS:-} --device cuda --seconds "${PER_OP:-45}" ${ARGS:-} \
            --output "$out/landscapes" 2>&1 | tee "$out/landscapes.txt"
        ;;
    live)
        read -ra ops <<<"${OPS:?}"
        gpus=$(nvidia-smi -L | wc -l)
        jobs=() failed=0
        for gpu in $(seq 0 $((gpus - 1))); do
            mine=()
            for ((i = gpu; i < ${#ops[@]}; i += gpus)); do mine+=("${ops[i]}"); done
            [ ${#mine[@]} -gt 0 ] || continue
            CUDA_VISIBLE_DEVICES=$gpu ATREX_HOME=/tmp/atrex-home-$gpu python3 -u benchmarks/live_search.py "${mine[@]}" \
                --device cuda --seconds "${PER_OP:-90}" ${ARGS:-} --events "$out/events" --output "$out/live$gpu.md" >"$out/live$gpu.txt" 2>&1 &
            jobs+=($!)
        done
        for job in "${jobs[@]}"; do wait "$job" || failed=$?; done
        tail -n 5 "$out"/live*.txt
        exit "$failed"
        ;;
    cheats)
        time python3 -m pytest -q -p no:cacheprovider ${ARGS:-tests/test_cheats.py tests/foreign tests/test_gradients.py} \
            2>&1 | tee "$out/cheats.txt"
        ;;
    gates)
        time python3 -m atrex verify knowledge/kernels/triton/rms_norm/row_tiles.py --op rms_norm --device cuda --all \
            2>&1 | tee "$out/verify.txt"
        time python3 benchmarks/calibration.py --device cuda --output "$out/calibration.md" || true
        python3 -m pytest -q -p no:cacheprovider tests/isolation tests/knowledge/test_triton_rms_norm.py \
            2>&1 | tee "$out/tests.txt" || true
        ;;
esac
