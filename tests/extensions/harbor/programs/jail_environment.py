"""A sandbox of Harbor's form that is the process jail: with it `harbor run` runs without containers."""

import base64
import io
import shutil
import tarfile
import tempfile
from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.environment_type import EnvironmentType

from art_extensions.harbor.jail import ProcessJail
from art_extensions.harbor.task_folders import HarborTask


class JailEnvironment(BaseEnvironment):
    @staticmethod
    def type():
        return EnvironmentType.DOCKER

    def _validate_definition(self):
        pass

    async def start(self, force_build):
        self._jail = ProcessJail(HarborTask.read(Path(self.environment_dir).parent))
        await self._jail.start()

    async def stop(self, delete):
        await self._jail.close()

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None, **_):
        done = await self._jail.run(command, timeout_s=timeout_sec or 60, variables=env, workdir=cwd)
        return ExecResult(stdout=done.output, stderr="", return_code=done.code)

    async def upload_dir(self, source_dir, target_dir):
        await self._jail.upload(Path(source_dir), str(target_dir))

    async def upload_file(self, source_path, target_path):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(source_path, Path(folder, Path(target_path).name))
            await self._jail.upload(Path(folder), str(Path(target_path).parent))

    async def download_dir(self, source_dir, target_dir):
        done = await self.exec(f"tar -cf - -C '{source_dir}' . | base64 -w0")
        archive = tarfile.open(fileobj=io.BytesIO(base64.b64decode(done.stdout)))
        archive.extractall(target_dir, filter="data")

    async def download_file(self, source_path, target_path):
        done = await self.exec(f"base64 -w0 '{source_path}'")
        with open(target_path, "wb") as file:  # noqa: ASYNC230
            file.write(base64.b64decode(done.stdout))
