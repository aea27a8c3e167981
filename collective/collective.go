// Package collective holds the operations in which every rank takes part. A Group matches calls by order of issue: all ranks
// issue the same calls in the same order, from one goroutine. New builds a Group on a Mesh; MPI and NCCL bring their own.
package collective

import (
	"context"

	"github.com/gradpress/gradpress/kernels"
	"github.com/gradpress/gradpress/transport"
)

// Op is how elements combine.
type Op uint8

// Mean divides by the size of the group: the sum, in float32; every contribution before it is summed, in a narrow wire type, which could
// overflow.
const (
	Sum Op = iota
	Mean
	Max
)

// Reduction says how elements combine and in which format they cross the wire. Each hop rounds to Wire and combines in float32;
// the owner of a segment rounds before it hands the segment out, so that it keeps what the others get. The zero value is an exact sum.
type Reduction struct {
	Op   Op
	Wire kernels.DType
}

// Group is N ranks that act together. After an error a Group is dead: close it.
type Group interface {
	Rank() int
	Size() int
	// AllReduce leaves the reduction of all ranks' x in every rank's x, the same bits everywhere.
	AllReduce(ctx context.Context, s kernels.Stream, x kernels.Buf[float32], r Reduction) error
	// Reduce leaves the reduction in root's x; on other ranks x is scratch afterwards.
	Reduce(ctx context.Context, s kernels.Stream, x kernels.Buf[float32], r Reduction, root int) error
	// ReduceScatter leaves segment Rank() of the reduction in x (see Segment); the rest of x is scratch afterwards.
	ReduceScatter(ctx context.Context, s kernels.Stream, x kernels.Buf[float32], r Reduction) error
	// AllGather returns every rank's message in rank order; lengths may differ and be zero. The slices are valid until the next
	// call; element Rank() is mine itself.
	AllGather(ctx context.Context, mine []byte) ([][]byte, error)
	// Broadcast overwrites b on every rank with root's b. Lengths must be equal; a mismatch is an error on the rank that sees it.
	Broadcast(ctx context.Context, b []byte, root int) error
	// AllToAll sends to[i] to rank i and returns what each rank sent here, in rank order. The slices are valid until the next call;
	// element Rank() is to[Rank()] itself.
	AllToAll(ctx context.Context, to [][]byte) ([][]byte, error)
	// MaxByte returns the largest b of all ranks in ceil(log2 N) rounds: how ranks agree on a flag.
	MaxByte(ctx context.Context, b byte) (byte, error)
	// Barrier returns once every rank has called it.
	Barrier(ctx context.Context) error
	// Traffic is what this rank has moved so far.
	Traffic() transport.Traffic
	// Abort fails the group on every rank, naming cause.
	Abort(cause error)
	Close() error
}

// Segment is the part [lo, hi) of n elements that rank r of size owns: sizes differ by at most one, the longer ones first.
func Segment(n, size, r int) (lo, hi int) {
	q, m := n/size, n%size
	lo = r*q + min(r, m)
	hi = lo + q
	if r < m {
		hi++
	}
	return lo, hi
}
