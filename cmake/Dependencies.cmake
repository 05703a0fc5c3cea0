# Everything comes from Debian 12's packages, and XGrammar (XGrammar.cmake) from PyPI; scripts/setup gets them.
find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)  # Module mode, and before gRPC: it brings protobuf_generate.
find_package(gRPC CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(ucx CONFIG REQUIRED)
find_package(GTest CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(fmt CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(yaml-cpp CONFIG REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(NGHTTP2 REQUIRED IMPORTED_TARGET libnghttp2)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)

if(PENSTOCK_CUDA)
  # The second is the one of `scripts/setup --cuda`.
  find_program(CMAKE_CUDA_COMPILER nvcc PATHS /usr/local/cuda/bin ${PROJECT_SOURCE_DIR}/build/nvcc/toolkit/bin REQUIRED)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # A100 and H100 as such; other GPUs from 8.x on run the first, and newer ones compile the PTX of the last.
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90a-real;90-virtual")
  endif()
  enable_language(CUDA)
  # CMake 3.25 does not know nvcc's C++20 mode, which CMAKE_CXX_STANDARD has it ask for.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  string(APPEND CMAKE_CUDA_FLAGS " --expt-relaxed-constexpr")
  find_package(CUDAToolkit REQUIRED)
endif()
