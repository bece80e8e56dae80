"""Labels of GPUs: the preset they name, and none where they leave a doubt."""

from __future__ import annotations

import pytest

from hybridcalc.hardware import gpu_of_label


@pytest.mark.parametrize(
    ("label", "gpu"),
    [
        ("NVIDIA-H200", "h200"),
        ("NVIDIA-H100-80GB-HBM3", "h100"),
        ("nvidia-h100-80gb", "h100"),
        ("H100", "h100"),
        ("nvidia-h200-141gb", "h200"),
        ("NVIDIA-A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA-A100-PCIE-40GB", "a100-40gb"),
        ("nvidia-tesla-t4", "t4"),
        ("NVIDIA-L40S", "l40s"),
        ("nvidia-l4", "l4"),
        ("NVIDIA-B200", "b200"),
        ("NVIDIA-GB200", "gb200"),
        ("NVIDIA-H20", "h20-96gb"),
        ("NVIDIA-H20-3e", "h20-141gb"),
        ("AMD_Instinct_MI300X_OAM", "mi300x"),
        ("p5.48xlarge", "h100"),
        ("p5en.48xlarge", "h200"),
        ("a3-ultragpu-8g", "h200"),
        ("Standard_ND96isr_H100_v5", "h100"),
        ("g6e.xlarge", "l40s"),
        ("NVIDIA-A100-SXM4", None),
        ("A100", None),
        ("NVIDIA-H100-NVL", "h100-nvl"),
        ("nvidia-a100-pcie-80gb", "a100-80gb-pcie"),
        ("NVIDIA-GeForce-RTX-4090", "rtx-4090"),
        ("nvidia-rtx-a6000", "rtx-a6000"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "rtx-pro-6000-server"),
        ("g7e.12xlarge", "rtx-pro-6000-server"),
        ("Standard_NC80adis_H100_v5", "h100-nvl"),
        ("Standard_NC48ads_A100_v4", "a100-80gb-pcie"),
        ("GH200", None),
        ("Tesla-V100-SXM2-32GB", "v100-32gb"),
        ("NVIDIA-GH200-480GB", "gh200-96gb"),
        ("NVIDIA-RTX-PRO-4500-Blackwell-Server-Edition", "rtx-pro-4500"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition", "rtx-pro-6000-max-q"),
        ("GeForce-RTX-4060Ti-16GB", "rtx-4060-ti-16gb"),
        ("NVIDIA-GeForce-RTX-5090-Laptop-GPU", None),
        ("NVIDIA-H100-96GB", None),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", None),
        ("NVIDIA-H100-80GB-HBM3-SHARED", None),
        ("true", None),
        ("", None),
        ("x" * 500, None),
        ("m5.large", None),
        ("nodepool-h100-h200", None),
    ],
)
def test_a_label_names_a_preset_or_nothing(label: str, gpu: str | None) -> None:
    assert gpu_of_label(label) == gpu
