"""Save a plan, load it in a server, answer requests, and tell Prometheus how long they take.

pip install fastapi uvicorn httpx
python examples/serve.py            # compiles, saves, serves once to a client in this process
uvicorn examples.serve:app          # serves model.anabranch, or the file that MODEL names

The plan is loaded and warmed up before the first request is let in. Loading runs no code of the
file's author and compiles nothing, so a worker starts in about the time that torch takes to import.
"""

import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import torch
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field

import anabranch

SIZE = 64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PLAN = Path(os.environ.get("MODEL", "model.anabranch"))


class Request(BaseModel):
    values: list[float] = Field(min_length=SIZE, max_length=SIZE)


class Metrics:
    """Counts of requests and the seconds they took, in Prometheus' text format."""

    def __init__(self) -> None:
        self.requests, self.seconds = 0, 0.0
        self._lock = threading.Lock()  # requests are answered in several threads

    def add(self, seconds: float) -> None:
        with self._lock:
            self.requests += 1
            self.seconds += seconds

    def text(self, held: int) -> str:
        return (
            "# TYPE model_requests_total counter\n"
            f"model_requests_total {self.requests}\n"
            "# TYPE model_seconds_total counter\n"
            f"model_seconds_total {self.seconds:.6f}\n"
            "# TYPE model_held_bytes gauge\n"
            f"model_held_bytes {held}\n"
        )


# --8<-- [start:server]
@asynccontextmanager
async def loaded(app: FastAPI) -> AsyncIterator[None]:
    app.state.model = anabranch.load(PLAN)
    app.state.metrics = Metrics()
    for _ in range(3):  # warm-up: the first calls touch memory for the first time
        app.state.model(torch.zeros(1, SIZE, device=DEVICE))
    yield


app = FastAPI(lifespan=loaded)


@app.post("/predict")
def predict(request: Request) -> list[float]:
    """FastAPI calls this from a pool of threads; calls of one plan wait for each other."""
    start = time.perf_counter()
    answer: list[float] = app.state.model(torch.tensor([request.values], device=DEVICE))[0].tolist()
    app.state.metrics.add(time.perf_counter() - start)
    return answer


@app.get("/metrics", response_class=PlainTextResponse)
def metrics() -> str:
    return app.state.metrics.text(app.state.model.memory().total)


# --8<-- [end:server]


def main() -> None:
    from fastapi.testclient import TestClient

    model = torch.nn.Sequential(
        torch.nn.Linear(SIZE, 128), torch.nn.ReLU(), torch.nn.Linear(128, 4)
    ).eval()
    example = torch.zeros(1, SIZE, device=DEVICE)
    anabranch.compile(model.to(DEVICE), (example,)).save(PLAN)
    model.cpu()

    values = torch.randn(SIZE)
    with TestClient(app) as client:
        answer = client.post("/predict", json={"values": values.tolist()})
        assert answer.status_code == 200, answer.text
        with torch.no_grad():
            torch.testing.assert_close(torch.tensor([answer.json()]), model(values[None]))
        assert client.post("/predict", json={"values": [1.0]}).status_code == 422
        print(answer.json())
        told = client.get("/metrics").text
        assert "model_requests_total 1" in told
        print(told)


if __name__ == "__main__":
    main()
