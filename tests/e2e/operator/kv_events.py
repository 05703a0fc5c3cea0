"""A subscriber of KV events as vLLM's are: the classes of vllm/distributed/kv_events.py, and a view of the cached blocks that
is built from events alone. Run it with a Python that has msgspec and pyzmq (tests/e2e/python/venv)."""

import collections
import typing

import msgspec
import zmq

END = (1 << 64) - 1  # -1, the sequence number behind the last batch
PATIENCE_MS = 30_000
Hash = bytes | int


# vLLM before 0.24: events are arrays, which begin with the class's name.


class ArrayEvent(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    pass


class BlockStored(ArrayEvent, tag="BlockStored"):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[typing.Any, ...] | None] | None = None
    group_idx: int | None = None


class BlockRemoved(ArrayEvent, tag="BlockRemoved"):
    block_hashes: list[Hash]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(ArrayEvent, tag="AllBlocksCleared"):
    pass


class ArrayBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


# vLLM since 0.24: events are maps, with the class's name under "type". The batch is still an array.


class MapEvent(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class MapBlockStored(MapEvent, tag="BlockStored"):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[typing.Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class MapBlockRemoved(MapEvent, tag="BlockRemoved"):
    block_hashes: list[Hash]
    medium: str | None
    group_idx: int | None = None


class MapAllBlocksCleared(MapEvent, tag="AllBlocksCleared"):
    pass


class MapBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[MapBlockStored | MapBlockRemoved | MapAllBlocksCleared]
    data_parallel_rank: int | None = None


# As vLLM's early subscribers, and llm-d's first decoder, read a batch: they ignore what follows the fields that they know.


class EarlyBlockStored(ArrayEvent, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None


class EarlyBlockRemoved(ArrayEvent, tag="BlockRemoved"):
    block_hashes: list[int]


class EarlyBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[EarlyBlockStored | EarlyBlockRemoved | AllBlocksCleared]


class Index:
    """The blocks that one worker has cached, as its events tell."""

    def __init__(self):
        self.media = collections.defaultdict(set)  # of each block, by its hash
        self.prompts = {}  # the tokens up to the end of each block
        self.clears, self.problems = 0, []

    def apply(self, event):
        name = type(event).__name__.removeprefix("Map")
        if name == "AllBlocksCleared":
            self.media.clear()
            self.prompts.clear()
            self.clears += 1
        elif name == "BlockStored":
            self.store(event)
        else:
            for block in event.block_hashes:
                self.remove(block, event.medium)

    def store(self, event):
        if event.token_ids and len(event.token_ids) != len(event.block_hashes) * event.block_size:
            self.problems.append(f"{len(event.token_ids)} tokens of {len(event.block_hashes)} blocks")
        prompt = self.prompts.get(event.parent_block_hash, []) if event.token_ids else []
        if event.token_ids and event.parent_block_hash is not None and not prompt:
            self.problems.append(f"the parent {event.parent_block_hash} is not known")
        for i, block in enumerate(event.block_hashes):
            if event.medium in self.media[block]:
                self.problems.append(f"{block} is stored in {event.medium} twice")
            self.media[block].add(event.medium)
            if event.token_ids:
                prompt = prompt + event.token_ids[i * event.block_size:(i + 1) * event.block_size]
                self.prompts[block] = prompt

    def remove(self, block, medium):
        if medium not in self.media[block]:
            self.problems.append(f"{block} is removed from {medium}, where it was not")
        self.media[block].discard(medium)
        if not self.media[block]:
            del self.media[block]

    def blocks(self, medium="GPU"):
        return {block for block, media in list(self.media.items()) if medium in media}

    def prefixes(self, medium="GPU"):
        """The prompts that the blocks end."""
        return {tuple(self.prompts[block]) for block in self.blocks(medium) if block in self.prompts}


class Subscriber:
    """Follows one worker: asks for the batches before it came, and for those that it missed."""

    def __init__(self, context, endpoint, batch=ArrayBatch, topic="kv@"):
        self.context, self.endpoint = context, endpoint
        self.decoder = msgspec.msgpack.Decoder(batch)
        self.index, self.next, self.replayed, self.topics = Index(), 0, 0, set()
        self.live = context.socket(zmq.SUB)
        self.live.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.live.connect(f"tcp://{endpoint}")

    def close(self):
        self.live.close(linger=0)

    def replay(self, first):
        """The kept batches from `first` on, as (number, payload)."""
        with self.context.socket(zmq.DEALER) as socket:
            socket.connect(f"tcp://{self.endpoint}")
            socket.send_multipart([b"", first.to_bytes(8, "big")])
            found = []
            while True:
                if not socket.poll(PATIENCE_MS):
                    raise AssertionError("no answer to a request for earlier batches")
                empty, number, payload = socket.recv_multipart()
                if empty != b"":
                    raise AssertionError(f"an answer begins with {empty}")
                number = int.from_bytes(number, "big")
                if number == END:
                    if payload:
                        raise AssertionError("the end has a payload")
                    return found
                found.append((number, payload))

    def catch_up(self):
        for number, payload in self.replay(self.next):
            self.take(number, payload)
            self.replayed += 1

    def take(self, number, payload):
        if number < self.next:
            return
        if number > self.next:
            raise AssertionError(f"batch {number} came, and {self.next} was not to be had")
        self.next = number + 1
        for event in self.decoder.decode(payload).events:
            self.index.apply(event)

    def follow(self, wait_ms=200):
        """Takes what has come."""
        while self.live.poll(wait_ms):
            topic, number, payload = self.live.recv_multipart()
            self.topics.add(topic.decode())
            number = int.from_bytes(number, "big")
            if number > self.next:
                self.catch_up()
            self.take(number, payload)
            wait_ms = 0
