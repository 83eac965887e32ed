"""NVIDIA FLARE as the carrier of the rounds; needs the extra ``fedmixtures[nvflare]``."""
