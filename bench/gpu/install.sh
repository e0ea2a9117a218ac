# Sourced by run.sh and league.sh in the project's folder: the kit's packages and the project itself become importable. Nothing else of
# the machine changes: packages go to a new folder of their own.
python=${PYTHON:-python3}
kit=${ART_GPU_KIT:-.gpu-kit}
kept_kit=/tmp/art-gpu-kit # from an earlier visit to this machine
if ls "$kit"/*.whl >/dev/null 2>&1; then rm -rf "$kept_kit" && cp -r "$kit" "$kept_kit"; else kit=$kept_kit; fi
if ! ls "$kit"/*.whl >/dev/null 2>&1; then
    echo "no wheels in .gpu-kit: run \`make gpu-kit\` where there is a network, and bring that folder along" >&2
    exit 3
fi
site=$(mktemp -d)/site
timeout "${ART_GPU_INSTALL_SECONDS:-30}" "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check \
    --target "$site" "$kit"/*.whl || { echo "the wheels of $kit could not be installed" >&2; exit 4; }
export PYTHONPATH="$PWD/src:$PWD:$site${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-/tmp/art-gpu-inductor}
