"""AOTInductor for NVIDIA's GPUs, on machines that need not have one."""
