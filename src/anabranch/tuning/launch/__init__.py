"""Launch modes: whether, and when, kernels start before those they follow have ended.

    plan --pdl--> the fastest mode for all kernels --pdl_per_kernel--> modes of their own for some
         --l1_carveout--> with as much shared memory as suits all of them

On compute capability 9.0 and up a generated kernel may be launched while the kernel before it
drains (`kernels.triton.pdl`). The gain depends on which kernel follows which, so it is measured in
whole plans. Kernels of libraries stay as they are. Modes touch the same memory: nothing is packed
anew."""
