"""Health: memory errors, throttling, the driver's log and the links, from NVML and the kernel."""
