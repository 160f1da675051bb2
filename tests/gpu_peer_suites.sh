#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# PyTorch's and CuPy's own tests with weir set and without, on a GPU: the same results?
#
#   bash tests/gpu_peer_suites.sh PYTORCH_TEST_FOLDER CUPY_TESTS_FOLDER [BUILD] [OPTIONS OF peer_suites.py]
#
# The folders are of the installed versions' sources (pytorch/test: test_torch.py, test_cuda.py and what lies beside them;
# cupy/tests: conftest.py, cupy_tests/); - leaves one out. BUILD: build/release unless given. Needs, beside torch, cupy and
# numpy: pytest iniconfig pluggy pygments packaging, and for PyTorch's hypothesis sortedcontainers expecttest psutil.
cd "$(dirname "$0")/.." || exit 1
torch=${1:?the test folder of PyTorch} cupy=${2:?the tests folder of CuPy} build=${3:-build/release}
shift $(($# < 3 ? $# : 3))
WEIR_LIBRARY_PATH=$(realpath -m "$build")
export WEIR_LIBRARY_PATH PYTHONPATH=$PWD/interpose/python${PYTHONPATH:+:$PYTHONPATH}
folders=()
[ "$torch" = - ] || folders+=(--torch "$torch")
[ "$cupy" = - ] || folders+=(--cupy "$cupy")
exec python3 tests/peer_suites.py "${folders[@]}" "$@"
