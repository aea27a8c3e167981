// Package blas is the single-precision matrix product of package model. It is gonum's pure Go
// implementation by default and OpenBLAS through gonum's netlib under the build tag openblas.
//
// Both run on the calling goroutine alone: data-parallel workers are the parallelism here, and a
// result must not depend on how many of them there are. The two round differently: bits are the same
// between ranks of one build only.
package blas

import "gonum.org/v1/gonum/blas/gonum"

// Axpy is for i := range x { y[i] += alpha * x[i] }. It panics if y is shorter than x.
func Axpy(alpha float32, x, y []float32) {
	gonum.Implementation{}.Saxpy(len(x), alpha, x, 1, y, 1)
}
