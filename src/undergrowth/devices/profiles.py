"""The profiles that are shipped, with the sources of their figures.

How they were made. `flops` is arithmetic: cores × clock × float32 operations a cycle (8 for Cortex-A53, A55 and A72,
16 for A76 and A78, 32 for Cortex-X3 and Apple's large cores, 2 for a CUDA core). `share` is what training small
networks reaches of it. Where High Performance Linpack was published ("HPL", github.com/geerlingguy/top500-benchmark;
it is double precision, so twice the figure is compared) the share is three quarters of Linpack's, because the
matrices of small networks are small; elsewhere it is an assumption and is called one. `memory` is what an operating
system would leave to training: about a quarter of the memory of small devices, half of large ones. Latency is half
the round trip that a speed test shows. The links are those of the place where such a device is used:
  home   80/32 Mbit/s and 10 ms round trip, the order of Ookla's median for fixed lines in 2022
  4G     35/10 Mbit/s and 28 ms, Ookla's median for mobile in 2022 (a third of it for the low-end phone)
  5G     166/21 Mbit/s, Ookla's median for 5G in the third quarter of 2021
Power of an LTE radio: Huang et al., MobiSys 2012 (1.3 W, and more with the rate of sending). All of it is meant to be
right within a factor of two; a fleet file can say better what is known better.
"""

from __future__ import annotations

from undergrowth.core.errors import InputError, nearest
from undergrowth.devices.profile import Profile

GIGA, MEGA, KILO = 1e9, 1e6, 1e3
HOME, MOBILE_LOW, MOBILE_4G, MOBILE_5G = (10, 4, 5), (1.5, 0.4, 14), (4.4, 1.25, 14), (20.8, 2.6, 10)

# name, peak GFLOP/s, share, memory in MB, (down and up in MB/s, latency in ms), watts: computing and radio, battery kJ
_TABLE: tuple[tuple[str, float, float, float, tuple[float, float, float], float, float, float | None, str], ...] = (
    ("microcontroller", 0.96, 0.2, 0.75, (2.5, 2.5, 5), 0.45, 0.8, 18,
     "STM32H743, Cortex-M7 480 MHz, 2 operations a cycle, 1 MB SRAM (data sheet); share assumed; ESP32 for Wi-Fi, "
     "20 Mbit/s in the air (ESP-IDF guide); two AA cells"),
    ("raspberry-pi-zero-2", 32, 0.15, 128, (5, 4, 5), 2.1, 0.8, None,
     "4 × Cortex-A53 1.0 GHz, 512 MB; 2.1 W under HPL, which needs more memory than it has; share assumed; "
     "2.4 GHz Wi-Fi"),
    ("raspberry-pi-3b+", 44.8, 0.2, 256, HOME, 5, 1, None,
     "4 × Cortex-A53 1.4 GHz, 1 GB; share assumed (Desai, REFT, 2023, puts Pi 3 and 4 at 8 to 40 GFLOPS)"),
    ("raspberry-pi-4", 57.6, 0.3, 1024, HOME, 7.2, 1, None,
     "4 × Cortex-A72 1.8 GHz, 4 GB; HPL 11.9 GFLOPS at 7.2 W, 0.41 of the peak"),
    ("raspberry-pi-5", 153.6, 0.3, 4096, HOME, 11, 1, None,
     "4 × Cortex-A76 2.4 GHz, 8 GB; HPL 30.2 GFLOPS at 11 W, 0.39 of the peak"),
    ("phone-low", 115, 0.1, 512, MOBILE_LOW, 2, 1.5, 41,
     "Snapdragon 450: 8 × Cortex-A53 1.8 GHz, 2 GB, 3000 mAh; share assumed, a phone slows down as it gets warm"),
    ("phone-mid", 205, 0.2, 1536, MOBILE_4G, 3.5, 2, 58,
     "Snapdragon 778G: 4 × Cortex-A78 2.2 to 2.4 GHz, 4 × A55 1.9 GHz, 6 GB, 4200 mAh; share assumed"),
    ("phone-high", 330, 0.25, 3072, MOBILE_5G, 5, 2.5, 69,
     "Snapdragon 8 Gen 2: Cortex-X3 3.2 GHz, 4 × A715/A710 2.8 GHz, 3 × A510 2.0 GHz, 12 GB, 5000 mAh; share assumed"),
    ("smartwatch", 18.9, 0.15, 256, (2, 1, 14), 1, 0.8, 5,
     "Exynos W920: 2 × Cortex-A55 1.18 GHz, 1.5 GB, 361 mAh; share assumed; Wi-Fi 802.11n or LTE"),
    ("laptop", 600, 0.25, 4096, HOME, 20, 1, 189,
     "Apple M2: 4 cores 3.5 GHz, 4 small ones 2.4 GHz, 8 GB, 52.6 Wh; HPL 105 GFLOPS in Docker, 0.35 of the peak"),
    ("desktop-gpu", 12_740, 0.3, 11_000, HOME, 170, 1, None,
     "GeForce RTX 3060: 3584 CUDA cores 1.78 GHz, 12 GB, 170 W (NVIDIA); share assumed"),
    ("jetson-nano", 236, 0.3, 2048, HOME, 10, 1, None,
     "128 CUDA cores 0.92 GHz, 4 GB shared, 10 W (NVIDIA: 472 GFLOPS in half precision); share assumed"),
    ("jetson-orin", 1280, 0.3, 5120, HOME, 15, 1, None,
     "Jetson Orin Nano: 1024 CUDA cores 0.625 GHz, 8 GB shared, 15 W (NVIDIA); share assumed"),
    ("edge-server", 8140, 0.3, 15_000, (125, 125, 1), 70, 1, None,
     "NVIDIA T4: 2560 CUDA cores 1.59 GHz, 16 GB, 70 W (NVIDIA); share assumed; a line of 1 Gbit/s"),
    # Desai (REFT, 2023), section 5.2, gives no more than the GFLOPS of its five clients; the rest is that of `uniform`.
    *((f"reft-{speed}", speed, 1.0, 1000, (1, 1, 0), 5, 1, None, f"Desai (REFT, 2023): a client of {speed} GFLOPS")
      for speed in (10, 20, 40, 60, 100)),
    ("uniform", 10, 1.0, 1_000_000, (1, 1, 0), 5, 1, None, "round figures, no real device; all the memory it needs"),
)  # fmt: skip

PROFILES: dict[str, Profile] = {
    name: Profile(
        name=name,
        flops=peak * GIGA,
        share=share,
        memory=round(memory * MEGA),
        down=down * MEGA,
        up=up * MEGA,
        latency=latency / KILO,
        compute_watts=compute,
        radio_watts=radio,
        battery=None if battery is None else battery * KILO,
        source=source,
    )
    for name, peak, share, memory, (down, up, latency), compute, radio, battery, source in _TABLE
}


def profile(name: str) -> Profile:
    """A shipped profile."""
    if name not in PROFILES:
        raise InputError(f"profile: unknown name '{name}'; {nearest(name, PROFILES)}")
    return PROFILES[name]
