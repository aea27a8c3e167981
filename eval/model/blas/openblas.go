//go:build openblas

package blas

/*
#cgo LDFLAGS: -lopenblas
void openblas_set_num_threads(int n);
*/
import "C"

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/netlib/blas/netlib"
)

// One thread a caller: the workers that call at once are the parallelism.
func init() { C.openblas_set_num_threads(1) }

// Name says which implementation is compiled in.
func Name() string { return "openblas" }

// Gemm is C = alpha*op(A)*op(B) + beta*C for row-major op(A) m x k, op(B) k x n and C m x n, where
// op transposes if the flag is set. lda, ldb and ldc are the lengths of the stored rows.
func Gemm(transA, transB bool, m, n, k int, alpha float32, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	tA, tB := blas.NoTrans, blas.NoTrans
	if transA {
		tA = blas.Trans
	}
	if transB {
		tB = blas.Trans
	}
	netlib.Implementation{}.Sgemm(tA, tB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
}
