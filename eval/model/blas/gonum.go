//go:build !openblas

package blas

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// Name says which implementation is compiled in.
func Name() string { return "gonum" }

// tile is the part of a product that one call to gonum computes: rows and columns of C and depth.
type tile struct{ m, n, k int }

// Gonum splits a product of four or more 64x64 blocks of C among goroutines and then works on rows of
// 64, too short for its vector loops. Tiles of three blocks it computes as they are. In each of the three
// orders its loops take, what they return to fits the first-level cache (32 KiB, 8192 values): the k rows
// of B that are added to each row of C; if A is transposed the m rows of C that each row of B is added to;
// if B is transposed the n rows of B that each row of A is multiplied by.
var (
	tileNN = tile{64, 192, 32}
	tileTN = tile{32, 192, 512}
	tileNT = tile{64, 12, 512}
)

// Gemm is C = alpha*op(A)*op(B) + beta*C for row-major op(A) m x k, op(B) k x n and C m x n, where
// op transposes if the flag is set. lda, ldb and ldc are the lengths of the stored rows.
func Gemm(transA, transB bool, m, n, k int, alpha float32, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	tA, tB, size := blas.NoTrans, blas.NoTrans, tileNN
	if transA {
		tA, size = blas.Trans, tileTN
	}
	if transB {
		tB, size = blas.Trans, tileNT
	}
	dn, dk := even(n, size.n), even(k, size.k)
	for j := 0; j < n; j += dn {
		nj := min(dn, n-j)
		for l := 0; l < k; l += dk {
			kl := min(dk, k-l)
			scale := beta
			if l > 0 {
				scale = 1
			}
			for i := 0; i < m; i += size.m {
				mi := min(size.m, m-i)
				aOff, bOff := i*lda+l, l*ldb+j
				if transA {
					aOff = l*lda + i
				}
				if transB {
					bOff = j*ldb + l
				}
				gonum.Implementation{}.Sgemm(tA, tB, mi, nj, kl, alpha, a[aOff:], lda, b[bOff:], ldb, scale, c[i*ldc+j:], ldc)
			}
		}
	}
}

// even is the size, a multiple of 4, of equal tiles of at most most that cover n.
func even(n, most int) int {
	tiles := max(1, (n+most-1)/most)
	return (max(1, (n+tiles-1)/tiles) + 3) / 4 * 4
}
