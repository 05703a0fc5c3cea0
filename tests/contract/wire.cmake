add_library(wire_test_support STATIC wire_support.cc)
target_link_libraries(wire_test_support PUBLIC penstock_wire_ucx GTest::gtest)

penstock_binary(wire_peer SRCS wire_peer.cc DEPS wire_test_support)

penstock_test(wire_contract_test SRCS wire_contract_test.cc DEPS wire_test_support LABELS contract)
penstock_test(wire_kill_test SRCS wire_kill_test.cc DEPS wire_test_support LABELS contract)
add_dependencies(wire_kill_test wire_peer)
penstock_test(wire_ucx_test SRCS wire_ucx_test.cc DEPS wire_test_support LABELS contract)
