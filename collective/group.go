package collective

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/gradpress/gradpress/kernels"
	"github.com/gradpress/gradpress/transport"
)

// New returns a Group over m: rings for what is dense, direct messages for what is gathered. Messages between ranks hold numbers
// in the host's byte order; the transport must refuse peers of the other one. The Group closes m.
func New(m transport.Mesh) Group { return &group{m: m, rank: m.Rank(), size: m.Size()} }

type group struct {
	m          transport.Mesh
	rank, size int
	err        error // the first failure
	stage      []float32
	half       []uint16       // a chunk on its way out
	wide       [block]float32 // scratch for narrow wire types
	sent       []int32        // what the ring has sent and not yet received the like of
	held       [][]byte       // messages that the last gather handed out
	gathered   [][]byte
	small      [8]byte
}

func (g *group) Rank() int                  { return g.rank }
func (g *group) Size() int                  { return g.size }
func (g *group) Traffic() transport.Traffic { return g.m.Traffic() }
func (g *group) Abort(cause error)          { g.m.Abort(cause) }
func (g *group) Close() error               { return g.m.Close() }

// peer is the rank d places further round the ring.
func (g *group) peer(d int) int { return ((g.rank+d)%g.size + g.size) % g.size }

// fail ends the group. The others are told: they may be waiting for what this rank will now not send.
func (g *group) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	g.err = fmt.Errorf("collective: %s: %w", op, err)
	g.m.Abort(g.err)
	return g.err
}

// recv is the next message from a rank, of exactly n bytes.
func (g *group) recv(ctx context.Context, from, n int) ([]byte, error) {
	b, err := g.m.Recv(ctx, from)
	if err == nil && len(b) != n {
		err = g.mismatch(from, "sent %d bytes where %d are expected", len(b), n)
	}
	return b, err
}

func (g *group) mismatch(from int, format string, args ...any) error {
	return &transport.PeerError{Rank: from, Via: -1, Reason: fmt.Sprintf("rank %d %s on rank %d; all ranks must issue the same calls with the same lengths",
		from, fmt.Sprintf(format, args...), g.rank)}
}

func (g *group) AllReduce(ctx context.Context, s kernels.Stream, x kernels.Buf[float32], r Reduction) error {
	return g.reduce(ctx, "all-reduce", s, x, r, func(h []float32) error { return g.ring(ctx, h, r, 2*(g.size-1)) })
}

func (g *group) ReduceScatter(ctx context.Context, s kernels.Stream, x kernels.Buf[float32], r Reduction) error {
	return g.reduce(ctx, "reduce-scatter", s, x, r, func(h []float32) error { return g.ring(ctx, h, r, g.size-1) })
}

func (g *group) Reduce(ctx context.Context, s kernels.Stream, x kernels.Buf[float32], r Reduction, root int) error {
	g.mustBeRank("Reduce", root)
	return g.reduce(ctx, "reduce", s, x, r, func(h []float32) error {
		if err := g.ring(ctx, h, r, g.size-1); err != nil {
			return err
		}
		return g.collect(ctx, h, r.Wire, root)
	})
}

// reduce runs f on the host's view of x.
func (g *group) reduce(ctx context.Context, op string, s kernels.Stream, x kernels.Buf[float32], r Reduction, f func(h []float32) error) error {
	if g.err != nil {
		return g.err
	}
	if x.Len() == 0 || g.size == 1 && r.Wire == kernels.F32 {
		return nil
	}
	h, err := kernels.View(ctx, s, x, &g.stage)
	if err == nil {
		err = f(h)
	}
	if err != nil {
		return g.fail(op, err)
	}
	if _, inPlace := kernels.Host(x); !inPlace {
		kernels.Write(s, x, h)
	}
	return nil
}

// AllGather sends directly at every size. A ring would move the same bytes in N-1 hops, store and forward each message, and make
// every rank wait for the longest; with a link between each pair it has nothing to offer. At distance d all ranks send to the
// d-th next, so that no rank is the target of two at once.
func (g *group) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	return g.exchange(ctx, "all-gather", func(int) []byte { return mine })
}

func (g *group) AllToAll(ctx context.Context, to [][]byte) ([][]byte, error) {
	if len(to) != g.size {
		panic(fmt.Sprintf("collective: AllToAll of %d messages in a group of %d", len(to), g.size))
	}
	return g.exchange(ctx, "all-to-all", func(r int) []byte { return to[r] })
}

func (g *group) exchange(ctx context.Context, op string, to func(r int) []byte) ([][]byte, error) {
	if g.err != nil {
		return nil, g.err
	}
	for _, b := range g.held {
		g.m.Release(b)
	}
	g.held = g.held[:0]
	if g.gathered == nil {
		g.gathered = make([][]byte, g.size)
	}
	g.gathered[g.rank] = to(g.rank)
	for d := 1; d < g.size; d++ {
		if err := g.m.Send(ctx, g.peer(d), to(g.peer(d))); err != nil {
			return nil, g.fail(op, err)
		}
	}
	for d := 1; d < g.size; d++ {
		from := g.peer(-d)
		b, err := g.m.Recv(ctx, from)
		if err != nil {
			return nil, g.fail(op, err)
		}
		g.gathered[from] = b
		g.held = append(g.held, b)
	}
	return g.gathered, nil
}

// Broadcast passes chunks along the ring from the root on, each rank keeping a copy. The length goes first.
func (g *group) Broadcast(ctx context.Context, b []byte, root int) error {
	g.mustBeRank("Broadcast", root)
	if g.err != nil {
		return g.err
	}
	return g.fail("broadcast", g.broadcast(ctx, b, root))
}

func (g *group) broadcast(ctx context.Context, b []byte, root int) error {
	last := g.peer(1) == root // so it is where the group is of one
	if g.rank == root {
		if last {
			return nil
		}
		binary.LittleEndian.PutUint64(g.small[:], uint64(len(b)))
		if err := g.m.Send(ctx, g.peer(1), g.small[:]); err != nil {
			return err
		}
		for i := 0; i < len(b); i += chunkBytes {
			if err := g.m.Send(ctx, g.peer(1), b[i:min(i+chunkBytes, len(b))]); err != nil {
				return err
			}
		}
		return nil
	}
	forward := func(c []byte) error {
		if last {
			g.m.Release(c)
			return nil
		}
		return g.m.Pass(ctx, g.peer(1), c)
	}
	left := g.peer(-1)
	c, err := g.recv(ctx, left, len(g.small))
	if err != nil {
		return err
	}
	n := binary.LittleEndian.Uint64(c)
	if err := forward(c); err != nil {
		return err
	}
	if n != uint64(len(b)) {
		return g.mismatch(root, "broadcasts %d bytes where %d are expected", n, len(b))
	}
	for i := 0; i < len(b); i += chunkBytes {
		dst := b[i:min(i+chunkBytes, len(b))]
		c, err := g.recv(ctx, left, len(dst))
		if err != nil {
			return err
		}
		copy(dst, c)
		if err := forward(c); err != nil {
			return err
		}
	}
	return nil
}

// MaxByte is a dissemination: after round k a rank knows the largest of the 2^(k+1) ranks that end with it. Counting one twice does
// no harm to a maximum, so N need not be a power of two.
func (g *group) MaxByte(ctx context.Context, b byte) (byte, error) {
	return g.maxByte(ctx, "max-byte", b)
}

func (g *group) Barrier(ctx context.Context) error {
	_, err := g.maxByte(ctx, "barrier", 0)
	return err
}

func (g *group) maxByte(ctx context.Context, op string, b byte) (byte, error) {
	if g.err != nil {
		return 0, g.err
	}
	for k := range bits.Len(uint(g.size - 1)) {
		g.small[0] = b
		if err := g.m.Send(ctx, g.peer(1<<k), g.small[:1]); err != nil {
			return 0, g.fail(op, err)
		}
		c, err := g.recv(ctx, g.peer(-1<<k), 1)
		if err != nil {
			return 0, g.fail(op, err)
		}
		b = max(b, c[0])
		g.m.Release(c)
	}
	return b, nil
}

func (g *group) mustBeRank(op string, r int) {
	if r < 0 || r >= g.size {
		panic(fmt.Sprintf("collective: %s with root %d in a group of %d", op, r, g.size))
	}
}
