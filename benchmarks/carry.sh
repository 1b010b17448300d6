#!/usr/bin/env bash
# What the lent H200 lacks, put where benchmarks/h200.sh looks for it; both folders are ignored by git, so the
# device tool carries them: carry [".whl", ".ptxas"].
#
#   make .venv/.installed && benchmarks/carry.sh          # what a measurement needs
#   THIRD=1 benchmarks/carry.sh                           # and the packages of h200.sh third
set -euo pipefail
platforms=()
for one in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux1; do
    platforms+=(--platform "${one}_x86_64")
done
wheels=(pydantic==2.14.4 pydantic_core==2.50.5 annotated-types==0.8.0 typing-inspection==0.4.5
    typing_extensions==4.16.0 bm25s==0.3.16)
[ -z "${THIRD:-}" ] || wheels+=(liger-kernel==0.8.5 fla-core==0.6.0 flag-gems==5.0.2 einops "sqlalchemy>=2.0.48" "packaging>=24")
python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    "${platforms[@]}" -d .whl "${wheels[@]}"
# Triton 3.6's assembler is wrong on Hopper (docs/results/ptxas-12.8.md); the one of this environment is newer.
ptxas=$(echo .venv/lib/python3*/site-packages/triton/backends/nvidia/bin/ptxas-blackwell)
mkdir -p .ptxas
xz -9 -T2 -c "$ptxas" >.ptxas/ptxas.xz
du -sh .whl .ptxas
