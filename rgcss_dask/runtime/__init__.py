"""Resources of a process: CPUs, BLAS threads, memory, identity. These modules import no others of the package."""
