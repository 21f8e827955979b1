# Every library is Debian's; ./run setup installs them.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(ZLIB REQUIRED)

# Debian's packages of these bring no CMake files, or (oneDNN) one that wants OpenCL's headers.
find_library(DNNL_LIBRARY dnnl REQUIRED)
find_path(DNNL_INCLUDE_DIR dnnl.hpp REQUIRED)
if(NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES
    IMPORTED_LOCATION "${DNNL_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${DNNL_INCLUDE_DIR}")
endif()
find_library(HTTPLIB_LIBRARY cpp-httplib REQUIRED)
find_path(HTTPLIB_INCLUDE_DIR httplib.h REQUIRED)
if(NOT TARGET httplib::httplib)
  add_library(httplib::httplib UNKNOWN IMPORTED)
  set_target_properties(httplib::httplib PROPERTIES
    IMPORTED_LOCATION "${HTTPLIB_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${HTTPLIB_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "OpenSSL::SSL;OpenSSL::Crypto;Threads::Threads"
    # How Debian built the library; the class layout depends on it.
    INTERFACE_COMPILE_DEFINITIONS
      "CPPHTTPLIB_OPENSSL_SUPPORT;CPPHTTPLIB_ZLIB_SUPPORT;CPPHTTPLIB_BROTLI_SUPPORT")
endif()
find_library(GLOO_LIBRARY gloo REQUIRED)
find_path(GLOO_INCLUDE_DIR gloo/allreduce.h REQUIRED)
if(NOT TARGET gloo::gloo)
  add_library(gloo::gloo UNKNOWN IMPORTED)
  set_target_properties(gloo::gloo PROPERTIES
    IMPORTED_LOCATION "${GLOO_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${GLOO_INCLUDE_DIR}")
endif()
if(SPARSEBALANCE_TESTS)
  find_package(GTest REQUIRED)
endif()
if(SPARSEBALANCE_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()

# CUDA is optional: say in one line which way it went. SPARSEBALANCE_HAVE_CUDA: the toolkit is here;
# SPARSEBALANCE_BUILD_CUDA: GPU code is built with it, which sanitizers do not know.
set(SPARSEBALANCE_HAVE_CUDA OFF)
set(SPARSEBALANCE_BUILD_CUDA OFF)
if(SPARSEBALANCE_CUDA STREQUAL "OFF")
  message(STATUS "CUDA: left out (SPARSEBALANCE_CUDA=OFF); workers use the CPU backend")
else()
  find_package(CUDAToolkit QUIET)
  # Before CUDA 12 nvcc does not know C++20.
  if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE AND TARGET CUDA::cublasLt
     AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12)
    set(SPARSEBALANCE_HAVE_CUDA ON)
    if(SPARSEBALANCE_SANITIZE)
      message(STATUS "CUDA: toolkit ${CUDAToolkit_VERSION} found; GPU code is left out of builds with sanitizers")
    else()
      set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
      enable_language(CUDA)
      # One runtime in a program: NCCL and cuBLASLt bring the shared one.
      set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
      # nvcc has had C++20 since CUDA 12, CMake 3.25 does not know it.
      if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
        set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
        list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
      endif()
      set(SPARSEBALANCE_BUILD_CUDA ON)
      message(STATUS "CUDA: toolkit ${CUDAToolkit_VERSION} found in ${CUDAToolkit_BIN_DIR}; "
                     "workers use GPUs where there are some")
    endif()
  elseif(SPARSEBALANCE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "CUDA: SPARSEBALANCE_CUDA=ON but no CUDA toolkit of version 12 or later "
                        "with nvcc and cuBLASLt was found; install one, point CUDAToolkit_ROOT at it, or use "
                        "SPARSEBALANCE_CUDA=AUTO")
  else()
    message(STATUS "CUDA: no toolkit of version 12 or later found, left out; workers use the CPU backend")
  endif()
endif()

# NCCL is optional likewise; it comes with CUDA's toolkit or from NVIDIA's packages.
set(SPARSEBALANCE_HAVE_NCCL OFF)
if(NOT SPARSEBALANCE_HAVE_CUDA)
  message(STATUS "NCCL: left out, as CUDA is; ranks communicate by Gloo")
else()
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS "${CUDAToolkit_LIBRARY_DIR}")
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    set(SPARSEBALANCE_HAVE_NCCL ON)
    message(STATUS "NCCL: found in ${NCCL_LIBRARY}")
    if(NOT TARGET NCCL::nccl)
      add_library(NCCL::nccl UNKNOWN IMPORTED)
      set_target_properties(NCCL::nccl PROPERTIES
        IMPORTED_LOCATION "${NCCL_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}"
        INTERFACE_LINK_LIBRARIES CUDA::cudart)
    endif()
  else()
    message(STATUS "NCCL: nccl.h or libnccl not found, left out; ranks communicate by Gloo")
  endif()
endif()
