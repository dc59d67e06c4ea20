# SPDX-License-Identifier: Apache-2.0
# Makes tarn::cuda where CUDA is found: tarn::tarn and what a program that uses a GPU links. The language CUDA need not be
# enabled. The runtime is the one that the target's CUDA sources use: the static one, or the shared one where the target's
# property CUDA_RUNTIME_LIBRARY asks for it. Two runtimes in one program would not know each other's devices and streams.
if(NOT TARGET tarn::cuda)
  find_package(Threads QUIET)
  find_package(CUDAToolkit 12 QUIET)
  if(Threads_FOUND AND CUDAToolkit_FOUND)
    add_library(tarn::cuda INTERFACE IMPORTED)
    set(tarn_runtime $<UPPER_CASE:$<TARGET_PROPERTY:CUDA_RUNTIME_LIBRARY>>)
    target_link_libraries(tarn::cuda INTERFACE tarn::tarn Threads::Threads ${CMAKE_DL_LIBS}
      $<IF:$<STREQUAL:${tarn_runtime},SHARED>,CUDA::cudart,CUDA::cudart_static>)
  endif()
endif()
