penstock_test(role_switch_test SRCS role_switch_test.cc DEPS penstock_role_switch LABELS unit threads)
