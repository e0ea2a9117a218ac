# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.tracking.folders import get_default_art_path as get_default_art_path
from art.tracking.folders import get_model_dir as get_model_dir
from art.tracking.folders import get_models_dir as get_models_dir
from art.tracking.folders import get_output_dir_from_model_properties as get_output_dir_from_model_properties
from art.tracking.folders import get_step_checkpoint_dir as get_step_checkpoint_dir
from art.tracking.folders import get_trajectories_dir as get_trajectories_dir
from art.tracking.folders import get_trajectories_split_dir as get_trajectories_split_dir

__all__ = ["get_default_art_path", "get_model_dir", "get_models_dir", "get_output_dir_from_model_properties", "get_step_checkpoint_dir", "get_trajectories_dir", "get_trajectories_split_dir"]

