"""A resource server of NeMo-Gym in the interpreter that has the package: served by uvicorn alone.

It is run by its path and imports nothing of ART. NeMo-Gym's own command starts Ray, a head server and an
environment of Python for each server; a resource server by itself uses none of them.

python nemo_gym_worker.py find                  prints {name: folder} of the servers
python nemo_gym_worker.py serve NAME SETTINGS   prints {"port"}, and serves until stdin ends
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

SERVERS = "resources_servers"
SERVER_HOST = "127.0.0.1"


def servers_folder() -> Path:
    found = find_spec("nemo_gym")
    if found is None or found.origin is None:
        raise SystemExit("the package nemo-gym is not installed")
    return Path(found.origin).parents[1] / SERVERS


def stand_in_for_missing() -> None:
    """Lets `import nemo_gym` pass where Ray and wandb, which it imports and a server does not use, are not
    installed.
    """
    for name, values in (("ray", {"__version__": "0"}), ("wandb", {"Run": object, "Histogram": object})):
        if find_spec(name) is None:
            module = sys.modules[name] = ModuleType(name)
            vars(module).update(values)
            vars(module)["util"] = sys.modules[f"{name}.util"] = ModuleType(f"{name}.util")


def make_app(name: str, port: int, settings: dict[str, Any]) -> Any:
    """Returns the application of a resource server. settings: fields of its config, beside those of its own
    YAML file.
    """
    stand_in_for_missing()
    from nemo_gym.base_resources_server import SimpleResourcesServer
    from nemo_gym.config_types import BaseServerConfig
    from nemo_gym.server_utils import ServerClient
    from omegaconf import DictConfig

    # NeMo-Gym starts the file in its folder, and some servers import and read what lies there.
    folder = servers_folder() / name
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    module = import_module(f"{SERVERS}.{name}.app")
    classes = [
        one
        for one in vars(module).values()
        if isinstance(one, type)
        and issubclass(one, SimpleResourcesServer)
        and one.__module__ == module.__name__
    ]
    if not classes:
        raise SystemExit(f"{module.__file__} has no SimpleResourcesServer")
    server_class: Any = classes[-1]
    config = {**_settings_of(name), **settings, "name": name, "host": SERVER_HOST, "port": port}
    server = server_class(
        config=server_class.model_fields["config"].annotation.model_validate(config),
        server_client=ServerClient(
            head_server_config=BaseServerConfig(host=SERVER_HOST, port=port),
            global_config_dict=DictConfig({}),
        ),
    )
    app = server.setup_webserver()
    server.setup_exception_middleware(app)
    return app


def _settings_of(name: str) -> dict[str, Any]:
    """Returns the fields of the config in the server's YAML file, if it has one of its name."""
    from omegaconf import OmegaConf

    path = servers_folder() / name / "configs" / f"{name}.yaml"
    if not path.is_file():
        return {}
    for one in OmegaConf.to_container(OmegaConf.load(path), resolve=False).values():
        if isinstance(one, dict) and name in one.get(SERVERS, {}):
            return dict(one[SERVERS][name])
    return {}


def serve(name: str, settings: dict[str, Any]) -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # servers print
    listening = socket.create_server((SERVER_HOST, 0))
    app = make_app(name, listening.getsockname()[1], settings)
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))

    def end() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()
    replies.write(json.dumps({"port": listening.getsockname()[1]}) + "\n")
    replies.flush()
    server.run(sockets=[listening])


def main() -> None:
    action, *rest = sys.argv[1:]
    if action == "serve":
        serve(rest[0], json.loads(rest[1]))
        return
    folders = sorted(one.parent for one in servers_folder().glob("*/app.py"))
    sys.stdout.write(json.dumps({one.name: str(one) for one in folders}) + "\n")


if __name__ == "__main__":
    main()
