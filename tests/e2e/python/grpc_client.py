"""gRPC's own Python clients, unchanged, against a router and its workers: grpc_client.py ENDPOINT PROTOS

PROTOS is the folder of inference.proto. Prints one line a check and ends with 0 when all of them hold.
"""

import importlib
import json
import pathlib
import sys
import tempfile
import threading
import time

import grpc
import grpc_tools
from google.protobuf.descriptor_pool import DescriptorPool
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status
from grpc_tools import protoc

from checks import run

PROMPT = "Once upon a time"
RETRY = {"methodConfig": [{"name": [{"service": "penstock.v1.Inference"}],
                           "retryPolicy": {"maxAttempts": 3, "initialBackoff": "0.05s", "maxBackoff": "0.1s",
                                           "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]}
checks = []


def check(function):
    checks.append(function)
    return function


def compile_protos(folder):
    """The modules that protoc makes of inference.proto."""
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as generated:
        if protoc.main(["protoc", f"-I{folder}", f"-I{well_known}", f"--python_out={generated}", f"--grpc_python_out={generated}",
                        f"{folder}/inference.proto"]):
            sys.exit("inference.proto does not compile")
        sys.path.insert(0, generated)
        return importlib.import_module("inference_pb2"), importlib.import_module("inference_pb2_grpc")


class Client:
    def __init__(self, endpoint, messages, services):
        self.endpoint, self.messages = endpoint, messages
        self.channel = grpc.insecure_channel(endpoint, options=[("grpc.service_config", json.dumps(RETRY))])
        self.stub = services.InferenceStub(self.channel)

    def request(self, tokens=16, **more):
        request = self.messages.GenerateRequest(text=PROMPT, **more)
        request.sampling.seed = 7
        request.stop.max_tokens = tokens
        request.stop.ignore_eos = True
        return request

    def text(self, request, **more):
        return "".join(answer.chunk.text for answer in self.stub.Generate(request, timeout=60, **more))


def error_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error
    raise AssertionError("it did not fail")


@check
def a_stream_and_a_whole_answer_are_the_same(client):
    whole = client.stub.GenerateUnary(client.request(48), timeout=60)
    assert whole.usage.completion_tokens == 48
    assert client.text(client.request(48)) == whole.choices[0].text


@check
def initial_metadata_come_with_the_first_token(client):
    call = client.stub.Generate(client.request(), timeout=60)
    assert next(call).HasField("chunk")
    assert "grpc-status" not in dict(call.initial_metadata())
    assert list(call)[-1].final.usage.completion_tokens == 16
    assert call.code() == grpc.StatusCode.OK


@check
def errors_carry_details(client):
    request = client.request()
    request.sampling.n = 99
    error = error_of(lambda: client.stub.GenerateUnary(request, timeout=60))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
    assert "sampling.n is 99" in error.details()
    status = rpc_status.from_call(error)
    bad = error_details_pb2.BadRequest()
    assert status.message == error.details() and status.details[0].Unpack(bad)
    assert bad.field_violations[0].field == "sampling.n"
    error = error_of(lambda: client.text(client.request(model="other")))
    info = error_details_pb2.ErrorInfo()
    assert error.code() == grpc.StatusCode.NOT_FOUND and rpc_status.from_call(error).details[0].Unpack(info)
    assert info.reason == "model_not_found" and info.domain == "penstock"


@check
def messages_of_errors_are_utf_8(client):
    error = error_of(lambda: client.text(client.request(model="\u20ac 100%\n")))
    assert "\u20ac 100%\n" in error.details(), error.details()


@check
def deadlines_pass(client):
    begin = time.monotonic()
    error = error_of(lambda: list(client.stub.Generate(client.request(1900), timeout=0.1)))
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
    assert time.monotonic() - begin < 30


@check
def calls_can_be_cancelled(client):
    call = client.stub.Generate(client.request(1900), timeout=60)
    next(call)
    call.cancel()
    assert call.code() == grpc.StatusCode.CANCELLED


@check
def many_calls_share_a_connection(client):
    expected = client.text(client.request())
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(client.text(client.request()))) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected] * 32


@check
def large_messages_are_taken_up_to_the_limit(client):
    error = error_of(lambda: client.text(client.messages.GenerateRequest(text="a " * (1 << 20))))  # 2 MiB
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "2097152 bytes" in error.details(), error
    error = error_of(lambda: client.text(client.messages.GenerateRequest(text="a" * (5 << 20))))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "4194304" in error.details(), error


@check
def compressed_requests_are_refused(client):
    error = error_of(lambda: client.text(client.messages.GenerateRequest(text="a" * 10000), compression=grpc.Compression.Gzip))
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED and "compressed" in error.details(), error


@check
def an_unknown_method_is_unimplemented(client):
    call = client.channel.unary_unary("/penstock.v1.Inference/Nothing")
    assert error_of(lambda: call(b"", timeout=60)).code() == grpc.StatusCode.UNIMPLEMENTED


@check
def the_other_methods_answer(client):
    tokens = client.stub.Tokenize(client.messages.TokenizeRequest(text=PROMPT), timeout=60)
    text = client.stub.Detokenize(client.messages.DetokenizeRequest(token_ids=tokens.token_ids), timeout=60).text
    assert text == PROMPT and tokens.count > 0
    assert client.stub.ListModels(client.messages.ListModelsRequest(), timeout=60).models[0].ready
    warm = client.stub.WarmPrefix(client.messages.WarmPrefixRequest(text=PROMPT * 20), timeout=60)
    assert warm.usage.prompt_tokens > 20 and warm.usage.completion_tokens == 0


@check
def health_is_checked_and_watched(client):
    health = health_pb2_grpc.HealthStub(client.channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    for service in ("", "penstock.v1.Inference", "live"):
        request = health_pb2.HealthCheckRequest(service=service)
        assert health.Check(request, timeout=60).status == serving
        watch = health.Watch(request, timeout=60)
        assert next(watch).status == serving
        watch.cancel()
    unknown = health_pb2.HealthCheckRequest(service="nothing")
    assert error_of(lambda: health.Check(unknown, timeout=60)).code() == grpc.StatusCode.NOT_FOUND
    watch = health.Watch(unknown, timeout=60)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


@check
def reflection_describes_the_service(client):
    database = ProtoReflectionDescriptorDatabase(client.channel)
    assert "penstock.v1.Inference" in database.get_services()
    service = DescriptorPool(database).FindServiceByName("penstock.v1.Inference")
    assert service.methods_by_name["Generate"].output_type.full_name == "penstock.v1.GenerateResponse"


def main():
    messages, services = compile_protos(sys.argv[2])
    client = Client(sys.argv[1], messages, services)
    return run(checks, client)


if __name__ == "__main__":
    sys.exit(main())
