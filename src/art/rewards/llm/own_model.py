"""A model of ART's as one that is asked: its newest step, or the base model underneath."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from art.errors import ConfigurationError, NotRegisteredError
from art.rewards.llm.endpoint import EndpointLlm
from art.rewards.llm.params import FREE, Params
from art.rewards.llm.request import Reply, Request
from art.tracking.prices import TokenPricing

if TYPE_CHECKING:
    from art.model import Model


class OwnModelLlm:
    """A model of the program. Its URL is looked up for each request, because it learns and its server may
    move.
    """

    def __init__(self, model: Model, params: Params, *, base: bool = False) -> None:
        """base: without the adapter. Raises ConfigurationError where the model has no base of its own."""
        own_base = getattr(model, "base_model", None)
        if base and own_base is None:
            raise ConfigurationError(f"base_of({model.name!r}): only a TrainableModel has a base model")
        self._model, self._params, self._base = model, params, own_base if base else None
        self.attempts = params.attempts
        self._latest: EndpointLlm | None = None

    @property
    def name(self) -> str:
        """The base model's name, or that of the model."""
        return self._base or self._model.name

    @property
    def _asked_as(self) -> str:
        return self._base or self._model.get_inference_name()

    @property
    def identity(self) -> str:
        """The identity, which includes the step: the next step gives other answers."""
        trained = getattr(self._model, "base_model", "")
        model_key = [self._model.project, trained, self._asked_as]
        return json.dumps([model_key, self._params.identity()], default=str)

    @property
    def pricing(self) -> TokenPricing | None:
        """The price: zero on the program's own server, elsewhere that of the model's name."""
        if self._params.pricing is not None or not self._model.trainable:
            return self._endpoint().pricing
        return FREE

    @property
    def max_tokens(self) -> int | None:
        """The limit of an answer that the user chose; None: the request's."""
        return self._endpoint().max_tokens

    async def complete(self, request: Request) -> Reply:
        """One attempt at the model's own address. Raises NotRegisteredError before `register`."""
        return await self._endpoint().complete(request)

    def _endpoint(self) -> EndpointLlm:
        model, asked = self._model, self._asked_as
        address = self._params.base_url or model.inference_base_url
        key = self._params.api_key or model.inference_api_key
        if address is None or key is None:
            raise NotRegisteredError(
                f"{model.name!r} cannot be asked yet: call `await model.register(backend)`, or give it "
                "inference_base_url and inference_api_key"
            )
        latest = self._latest
        if latest is None or (latest.model, latest.base_url) != (asked, address):
            latest = EndpointLlm(
                name=self.name,
                model=asked,
                base_url=address,
                api_key=key,
                params=self._params,
                pricing=FREE if model.trainable else None,
            )
            self._latest = latest
        return latest
