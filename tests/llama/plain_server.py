"""llama-server as PyPI's xllamacpp has it. Usage: plain_server.py MODEL SLOT_FOLDER PORT JSON
JSON: {"slots": 1, "context": 8192, "k": "F16", "v": "F16", "flash": true, "unified": true}"""

import json
import sys
import threading

import xllamacpp

model, slot_folder, port, options = sys.argv[1:]
options = json.loads(options)
params = xllamacpp.CommonParams()
params.model.path = model
params.slot_save_path = slot_folder + "/"
params.endpoint_slots = True
params.hostnames = ["127.0.0.1"]
params.port = int(port)
params.n_ctx = options.get("context", 8192)
params.n_parallel = options.get("slots", 1)
params.kv_unified = options.get("unified", True)
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # tests run beside each other
params.cache_ram_mib = 0  # a cache of its own would hide what prefixd does
params.cache_type_k = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + options.get("k", "F16"))
params.cache_type_v = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + options.get("v", "F16"))
params.flash_attn_type = getattr(
    xllamacpp.llama_flash_attn_type,
    "LLAMA_FLASH_ATTN_TYPE_" + ("ENABLED" if options.get("flash", True) else "DISABLED"),
)
server = xllamacpp.Server(params)  # its log says where it listens
threading.Event().wait()
