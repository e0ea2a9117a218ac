"""llama.cpp's own server on a free port of this machine; its address is the first line that it prints.

Run by the interpreter of .venv-deployment: `llama_cpp_server.py MODEL.gguf`. It ends with its standard input.
"""

from __future__ import annotations

import sys

import xllamacpp

settings = xllamacpp.CommonParams()
settings.model.path = sys.argv[1]
settings.hostnames = ["127.0.0.1"]
settings.port = 0
settings.n_ctx = 1024
settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(settings)
print(server.listening_address, flush=True)
sys.stdin.read()
