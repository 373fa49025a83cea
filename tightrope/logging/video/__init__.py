"""Videos of training, and pictures in a notebook."""

from .mp4 import Clip, Video, first_phase
from .notebook import NotebookPicture
from .rollout import RolloutVideo

__all__ = ["Clip", "NotebookPicture", "RolloutVideo", "Video", "first_phase"]
