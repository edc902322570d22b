# Measures the parts of a training step, on a CPU or a GPU, for scripts/gpu_check.sh.
add_executable(xffl-kernel-bench ${CMAKE_CURRENT_LIST_DIR}/kernel_bench.cc)
target_include_directories(xffl-kernel-bench PRIVATE ${CMAKE_SOURCE_DIR}/src/llama ${CMAKE_SOURCE_DIR}/src/comm)
target_link_libraries(xffl-kernel-bench PRIVATE xffl_warnings xffl::base xffl::comm xffl::llama xffl::shard xffl::train)
xffl_use_torch(xffl-kernel-bench)
if(NOT XFFL_CUDA)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  add_test(NAME kernel_bench COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/kernel_bench_test.py
                                     $<TARGET_FILE:xffl-kernel-bench>)
  set_tests_properties(kernel_bench PROPERTIES LABELS torch SKIP_RETURN_CODE 77 TIMEOUT 90)
endif()
