#!/usr/bin/env bash
# Run a command as an older processor would: as_processor.sh ISA THREADS COMMAND...
# ISA is SSE4_2, AVX2 or AVX512. XLA, NumPy and OpenBLAS are held back alike; programs that were
# compiled for another processor are not used.
set -euo pipefail
isa=$1 threads=$2
shift 2

case $isa in
  SSE4_2) numpy="X86_V3 X86_V4 AVX512_ICL AVX512_SPR" blas=Nehalem ;;
  AVX2) numpy="X86_V4 AVX512_ICL AVX512_SPR" blas=Haswell ;;
  AVX512) numpy="" blas=SkylakeX ;;
  *) echo "error: the instruction set is '$isa'. Give SSE4_2, AVX2 or AVX512." >&2 && exit 2 ;;
esac

# NumPy warns of what it could not switch off: name only what this build and this processor have.
python=$(command -v "$1")
has=$("$python" -c 'if True:
    from numpy._core._multiarray_umath import __cpu_dispatch__ as built, __cpu_features__ as here
    print(*(name for name in built if here.get(name)))' 2>/dev/null || true)
off=""
for feature in $numpy; do
  case " $has " in *" $feature "*) off="$off $feature" ;; esac
done

export XLA_FLAGS="${XLA_FLAGS:-} --xla_cpu_max_isa=$isa --xla_backend_optimization_level=1"
export OPENBLAS_CORETYPE=$blas OPENBLAS_NUM_THREADS=$threads OMP_NUM_THREADS=$threads
if [ -n "$off" ]; then export NPY_DISABLE_CPU_FEATURES="${off# }"; fi
echo "as a processor with $isa, $threads thread(s); NumPy without:${off:- nothing}" >&2
# XLA makes as many threads as it may use cores: those from FIRST_CORE on.
first=$((${FIRST_CORE:-0} % $(nproc --all)))
if command -v taskset >/dev/null; then
  exec taskset -c "$first-$((first + threads - 1))" "$@"
fi
exec "$@"
