"""A server that speaks vLLM's addresses, with transformers as its engine: it reads a folder and draws for itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class FakeVllm:
    """Its model, and the requests that it got."""

    def __init__(self, folder: Path, deaf: bool = False, lacks: str = "") -> None:
        self.folder, self.deaf, self.lacks = folder, deaf, lacks
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.lock = threading.Lock()
        self.end = AutoTokenizer.from_pretrained(folder).eos_token_id
        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()

    def answer(self, address: str, body: dict[str, Any]) -> tuple[int, Any]:
        with self.lock:
            self.asked.append((address, body))
            if address == self.lacks:
                return 404, {"detail": "Not Found"}
            if address == "/v1/models":
                return 200, {"data": [{"id": str(self.folder)}]}
            if address == "/collective_rpc":
                if not self.deaf:
                    self.model = AutoModelForCausalLM.from_pretrained(self.folder).eval()
                return 200, {"results": [None]}
            if address.startswith("/reset_prefix_cache"):
                return 200, None
            choices = [self.complete(index, body) for index in range(body["n"])]
            return 200, {"choices": choices[::-1]}  # in no order, as an engine ends them

    @torch.inference_mode()
    def complete(self, index: int, body: dict[str, Any]) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(body["seed"] + index)
        tokens, log_probs = list(body["prompt"]), list[float]()
        for _ in range(body["max_tokens"]):
            logits_V = self.model(torch.tensor([tokens])).logits[0, -1] / body["temperature"]
            token = int(torch.multinomial(logits_V.softmax(-1), 1, generator=generator))
            tokens.append(token)
            log_probs.append(logits_V.log_softmax(-1)[token].item())
            if token == self.end:
                break
        ids = tokens[len(body["prompt"]) :]
        choice: dict[str, Any] = {"index": index, "text": "", "logprobs": {"token_logprobs": log_probs}}
        return choice | ({"token_ids": ids} if body.get("return_token_ids") and self.lacks != "token_ids" else {})


@contextmanager
def served(engine: FakeVllm) -> Iterator[str]:
    """Serve at an address of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def reply(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            code, value = engine.answer(self.path, json.loads(self.rfile.read(size) or b"{}"))
            content = b"" if value is None else json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = reply

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
