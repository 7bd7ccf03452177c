# How a step becomes a library. Adding a file to a step's folder adds it to the build: nothing here needs an edit.
include(${CMAKE_CURRENT_LIST_DIR}/spliced.cmake)

# What every library, test and benchmark is compiled with.
add_library(ladder_flags INTERFACE)
if(LADDER_SPLICED_FILES MATCHES "\\.(h|cuh)(;|$)")
  target_include_directories(ladder_flags INTERFACE ${LADDER_SPLICED})
endif()
target_include_directories(ladder_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(ladder_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unknown-pragmas>)
# GCC 12 sees overlapping copies in `"text" + string` where there are none (GCC bug 105651).
target_compile_options(ladder_flags INTERFACE
                       $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
# fmt turns its constexpr off under nvcc, and with it the format strings that are checked at compile time.
target_compile_definitions(ladder_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
target_link_libraries(ladder_flags INTERFACE fmt::fmt Threads::Threads)
if(OpenMP_CXX_FOUND)
  target_link_libraries(ladder_flags INTERFACE OpenMP::OpenMP_CXX)
endif()
if(LADDER_CUDA_LIBRARIES)
  target_compile_definitions(ladder_flags INTERFACE LADDER_HAS_CUDA=1)
endif()
if(LADDER_ONEDNN_LIBRARIES)
  target_compile_definitions(ladder_flags INTERFACE LADDER_HAS_ONEDNN=1)
endif()
if(LADDER_SANITIZE)
  target_compile_options(ladder_flags INTERFACE -fsanitize=${LADDER_SANITIZE} -fno-omit-frame-pointer
                                                -fno-sanitize-recover=all)
  target_link_options(ladder_flags INTERFACE -fsanitize=${LADDER_SANITIZE})
endif()

# Files named *_simd.cpp are compiled once per instruction set, each time into the namespace that LADDER_ISA names;
# which one runs is decided at run time (step1_layers/core/cpu_features.h).
set(LADDER_ISAS portable)
set(LADDER_ISA_FLAGS_portable "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND LADDER_ISAS avx2 avx512)
  set(LADDER_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
  set(LADDER_ISA_FLAGS_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl
                              -mprefer-vector-width=512)
endif()

# ladder_step(NUMBER FOLDER [PUBLIC LIBRARY...] [PRIVATE LIBRARY...]): the library ladder_stepN of all files in FOLDER,
# on top of the step below and of the libraries named.
function(ladder_step number folder)
  cmake_parse_arguments(arg "" "" "PUBLIC;PRIVATE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/(server|mpi)/")  # libraries of their own
  set(simd_sources ${sources})
  list(FILTER simd_sources INCLUDE REGEX "_simd\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "_simd\\.cpp$")
  if(NOT LADDER_ONEDNN_LIBRARIES)
    list(FILTER sources EXCLUDE REGEX "_onednn\\.cpp$")
  endif()

  if(LADDER_CUDA_LIBRARIES)
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cu)
    list(APPEND sources ${cuda_sources})
  else()
    list(FILTER sources EXCLUDE REGEX "_cuda\\.cpp$")
  endif()
  ladder_splice(sources)
  ladder_splice(simd_sources)

  set(name ladder_step${number})
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC ladder_flags)
  if(number GREATER 1)
    math(EXPR below "${number} - 1")
    target_link_libraries(${name} PUBLIC ladder_step${below})
  endif()
  if(simd_sources)
    foreach(isa ${LADDER_ISAS})
      add_library(${name}_${isa} OBJECT ${simd_sources})
      target_link_libraries(${name}_${isa} PRIVATE ladder_flags)
      # Vectors are passed on by reference and live in registers once all is inlined, but not where AddressSanitizer has to
      # mark the end of their scopes in memory: then a product takes ten times as long. What it sees of memory stays.
      if(LADDER_SANITIZE MATCHES "address")
        target_compile_options(${name}_${isa} PRIVATE -fno-sanitize-address-use-after-scope)
      endif()
      # gcc 12 takes the undefined registers inside its own AVX-512 intrinsics for a mistake of the caller.
      target_compile_options(${name}_${isa} PRIVATE -O3 ${LADDER_ISA_FLAGS_${isa}}
                                                    "$<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized;-Wno-maybe-uninitialized>")
      target_compile_definitions(${name}_${isa} PRIVATE LADDER_ISA=${isa})
      target_sources(${name} PRIVATE $<TARGET_OBJECTS:${name}_${isa}>)
    endforeach()
  endif()
  target_link_libraries(${name} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
endfunction()
