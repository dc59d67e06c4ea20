// SPDX-License-Identifier: Apache-2.0
// The functions of cuRAND's host library that AMReX calls. The work draws no random numbers, so that library,
// of 130 MB, is not needed where the program runs: AMReX gets a generator that refuses to generate.
#include <curand.h>

extern "C" {

curandStatus_t curandCreateGenerator(curandGenerator_t* generator, curandRngType_t) {
  *generator = nullptr;
  return CURAND_STATUS_SUCCESS;
}
curandStatus_t curandDestroyGenerator(curandGenerator_t) {
  return CURAND_STATUS_SUCCESS;
}
curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t, unsigned long long) {
  return CURAND_STATUS_SUCCESS;
}
curandStatus_t curandGenerateUniformDouble(curandGenerator_t, double*, size_t) {
  return CURAND_STATUS_NOT_INITIALIZED;
}
curandStatus_t curandGenerateNormalDouble(curandGenerator_t, double*, size_t, double, double) {
  return CURAND_STATUS_NOT_INITIALIZED;
}
}
