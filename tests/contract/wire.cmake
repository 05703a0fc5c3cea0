add_library(wire_test_support STATIC wire_support.cc)
target_link_libraries(wire_test_support PUBLIC penstock_wire_ucx GTest::gtest)

penstock_test(wire_contract_test SRCS wire_contract_test.cc DEPS wire_test_support LABELS contract)
