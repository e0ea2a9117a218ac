"""Runs where the tinker SDK is: what the owner of one key sees of another one's.

    python two_keys.py KEY OTHER_KEY

Prints a JSON line for each attempt of the other key: its name, the outcome ("works", or the class of the
error) and the words.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable
from typing import Any

warnings.simplefilter("ignore")

import tinker  # noqa: E402
from method_calls import BASE, RANK, message_of, tell  # noqa: E402
from tinker import types  # noqa: E402

IDS = list(range(1, 12))
PROMPT = types.ModelInput.from_ints(IDS)


class Owner:
    """A key's clients, with a trained and saved model."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.service = tinker.ServiceClient(api_key=key, display_name="two keys")
        self.rest = tinker.RestClient(api_key=key)
        self.training = self.service.create_lora_training_client(BASE, rank=RANK).result()
        columns = {"target_tokens": IDS[1:]}
        datum = types.Datum(model_input=types.ModelInput.from_ints(IDS[:-1]), loss_fn_inputs=dict(columns))
        self.training.forward_backward([datum], "cross_entropy")
        self.training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        self.state = self.training.save_state("state").result().path
        self.weights = self.training.save_weights_for_sampler("weights").result().path
        self.external = self.training.save_weights_external("files").result().path
        self.sampler = self.training.save_weights_and_get_sampling_client().result()
        self.session_id = self.training.holder.get_session_id()

    def sampled(self, sampler: tinker.SamplingClient) -> list[int]:
        params = types.SamplingParams(max_tokens=3, seed=1)
        return sampler.sample(PROMPT, 1, params).result().sequences[0].tokens

    def post(self, route: str, **body: Any) -> Any:
        """The reply to a request that the SDK would not make."""
        request = urllib.request.Request(
            f"{os.environ['TINKER_BASE_URL']}/api/v1/{route}",
            data=json.dumps(body).encode(),
            headers={"X-API-Key": self.key, "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.read()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{error.code} {json.loads(error.read())['detail']}") from error


def attempts(mine: Owner, other: Owner) -> dict[str, Callable[[], Any]]:
    """What the other key tries with what is mine."""
    rest, service = other.rest, other.service
    run_id, sampler_id = mine.training.model_id, mine.sampler._sampling_session_id
    stranger = tinker.TrainingClient(service.holder, 0, run_id, info=mine.training.get_info())
    joined = tinker.SamplingClient(service.holder, sampling_session_id=sampler_id, base_model=BASE)
    return {
        "get_training_run": lambda: rest.get_training_run(run_id).result(),
        "list_checkpoints": lambda: rest.list_checkpoints(run_id).result(),
        "get_session": lambda: rest.get_session(mine.session_id).result(),
        "get_sampler": lambda: rest.get_sampler(sampler_id).result(),
        "assign_session_project": lambda: rest.assign_session_project(mine.session_id, "p").result(),
        "delete_checkpoint": lambda: rest.delete_checkpoint_from_tinker_path(mine.state).result(),
        "publish_checkpoint": lambda: rest.publish_checkpoint_from_tinker_path(mine.state).result(),
        "set_checkpoint_ttl": lambda: rest.set_checkpoint_ttl_from_tinker_path(mine.state, 60).result(),
        "get_weights_info": lambda: rest.get_weights_info_by_tinker_path(mine.state).result(),
        "get_external_weights_urls": lambda: rest.get_external_weights_urls(mine.external).result(),
        "copy_weights": lambda: rest.copy_weights(mine.state, "p").result(),
        "from_state": lambda: service.create_training_client_from_state(mine.state).result(),
        "create_sampling_client": lambda: service.create_sampling_client(model_path=mine.weights).result(),
        "sample": lambda: other.sampled(joined),
        "optim_step": lambda: stranger.optim_step(types.AdamParams()).result(),
        "a future": lambda: other.post("retrieve_future", request_id=f"{run_id}:1"),
        "a heartbeat": lambda: other.post("session_heartbeat", session_id=mine.session_id),
        "the end of a session": lambda: other.post(f"sessions/{mine.session_id}/finish"),
        "a model in a session": lambda: other.post(
            "create_model", session_id=mine.session_id, model_seq_id=99, base_model=BASE
        ),
        "a sampler in a session": lambda: other.post(
            "create_sampling_session",
            session_id=mine.session_id,
            sampling_session_seq_id=99,
            base_model=BASE,
        ),
    }


def tell_attempts(before: str, tried: dict[str, Callable[[], Any]]) -> None:
    for name, attempt in tried.items():
        try:
            attempt()
        except Exception as error:  # noqa: BLE001  its class is what is told
            tell(f"{before}{name}", type(error).__name__, message_of(error))
        else:
            tell(f"{before}{name}", "works", "")


def main() -> None:
    mine, other = Owner(sys.argv[1]), Owner(sys.argv[2])
    for owner, one, foreign in (("first", mine, other), ("second", other, mine)):
        runs = one.rest.list_training_runs().result().training_runs
        checkpoints = one.rest.list_user_checkpoints().result().checkpoints
        found = one.rest.search_sessions(types.SessionSearchRequest()).result().sessions
        seen = {
            "runs": [run.training_run_id for run in runs],
            "checkpoints": [saved.tinker_path for saved in checkpoints],
            "sessions": one.rest.list_sessions().result().sessions,
            "search": [session.session_id for session in found],
        }
        for kind, names in seen.items():
            strange = [name for name in names if foreign.session_id in name]
            tell(f"listed {kind} of the {owner}", "hidden" if names and not strange else "seen", str(strange))
    tell_attempts("", attempts(mine, other))
    mine.rest.publish_checkpoint_from_tinker_path(mine.state).result()
    mine.rest.publish_checkpoint_from_tinker_path(mine.weights).result()
    names = ("get_weights_info", "copy_weights", "from_state", "create_sampling_client", "delete_checkpoint")
    published = attempts(mine, other)
    tell_attempts("published: ", {name: published[name] for name in names})
    mine.sampled(mine.sampler)
    mine.rest.get_training_run(mine.training.model_id).result()
    tell("mine is untouched", "works", "")


if __name__ == "__main__":
    main()
