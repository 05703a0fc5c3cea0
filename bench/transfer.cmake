penstock_module(penstock_bench_transfer SRCS transfer.cc transfer_processes.cc HDRS
                    transfer.h transfer_processes.h DEPS penstock_kernels penstock_wire_ucx)
