"""Makes the example depend on the job's GPUs, as a CUDA program does, by asking NVML about each of them in every step."""

from __future__ import annotations

import ctypes
import os
import sys
import time

__all__ = ["GpuError", "Watch", "stop_as_cuda_would"]

_NVML_SUCCESS = 0
_NVML_ERROR_GPU_IS_LOST = 15  # nvml.h
_NVML_TEMPERATURE_GPU = 0


class GpuError(Exception):
    """The job's GPUs cannot be used."""


class Watch:
    """The job's GPUs. ``lost_gpu()`` is cheap enough for every step."""

    def __init__(self, nvml: ctypes.CDLL | None, indices: list[int]) -> None:
        self._nvml, self._indices = nvml, indices

    @classmethod
    def open(cls, mode: str) -> Watch:
        """mode: ``none``, ``nvml`` (raises GpuError where there is none) or ``auto``."""
        if mode == "none":
            return cls(None, [])
        try:
            nvml = ctypes.CDLL(os.environ.get("NVML_LIBRARY") or "libnvidia-ml.so.1")
        except OSError as exc:
            if mode == "nvml":
                raise GpuError(f"no NVML: {exc}") from exc
            return cls(None, [])
        count = ctypes.c_uint(0)
        if nvml.nvmlInit_v2() != _NVML_SUCCESS or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _NVML_SUCCESS:
            if mode == "nvml":
                raise GpuError("NVML does not start; is the driver loaded?")
            return cls(None, [])
        given = [int(part) for part in os.environ.get("SLURM_JOB_GPUS", "").split(",") if part.isdigit()]
        # inside a device cgroup only the job's GPUs are visible, and they are numbered from 0
        indices = given if given and max(given) < count.value else list(range(count.value))
        return cls(nvml, indices)

    def lost_gpu(self) -> int | None:
        """Index of the first GPU that has fallen off the bus; None while all answer."""
        if self._nvml is None:
            return None
        for index in self._indices:
            handle, celsius = ctypes.c_void_p(), ctypes.c_uint(0)
            code = self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
            if code == _NVML_SUCCESS:
                code = self._nvml.nvmlDeviceGetTemperature(handle, _NVML_TEMPERATURE_GPU, ctypes.byref(celsius))
            if code == _NVML_ERROR_GPU_IS_LOST:
                return index
        return None


def stop_as_cuda_would(mode: str) -> None:
    """``hang``: never return, so that all other ranks wait in their all-reduce. ``exit``: end with an error."""
    if mode == "exit":
        sys.exit(1)
    while True:
        time.sleep(3600)
