#!/usr/bin/env python3
"""Streams one answer over gRPC with a client generated from proto/inference.proto.
Usage: pip install grpcio-tools; grpc_generate.py [ENDPOINT [PROMPT]]"""

import importlib
import pathlib
import sys
import tempfile

import grpc
import grpc_tools
from grpc_tools import protoc

endpoint = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8090"
prompt = sys.argv[2] if len(sys.argv) > 2 else "Once upon a time"

protos = pathlib.Path(__file__).resolve().parent.parent / "proto"
well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
with tempfile.TemporaryDirectory() as generated:
    failed = protoc.main(["protoc", f"-I{protos}", f"-I{well_known}", f"--python_out={generated}",
                          f"--grpc_python_out={generated}", str(protos / "inference.proto")])
    if failed:
        sys.exit("inference.proto does not compile")
    sys.path.insert(0, generated)
    messages = importlib.import_module("inference_pb2")
    services = importlib.import_module("inference_pb2_grpc")

request = messages.GenerateRequest(text=prompt)
request.sampling.seed = 7
request.stop.max_tokens = 32
with grpc.insecure_channel(endpoint) as channel:
    stub = services.InferenceStub(channel)
    text = ""
    for response in stub.Generate(request, timeout=60):
        if response.HasField("chunk"):
            text += response.chunk.text
            print(response.chunk.text, end="", flush=True)
        elif response.final.HasField("usage"):
            print(f"\n({response.final.usage.completion_tokens} tokens)")
    whole = stub.GenerateUnary(request, timeout=60)
    if whole.choices[0].text != text:
        sys.exit("the stream and the whole answer differ")
