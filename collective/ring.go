package collective

import (
	"context"
	"unsafe"

	"github.com/gradpress/gradpress/kernels"
)

// chunkBytes is the unit in which long messages travel, so that one chunk is added while the next is on the wire. It fits in the
// second-level cache together with what it is added to.
const chunkBytes = 256 << 10

// ahead is how many chunks of its own a rank sends before it waits for the first from its neighbour.
const ahead = 4

// ring runs the first hops of a ring all-reduce on x. At hop t a rank receives segment Rank()-2-t from the left. In the first N-1 hops
// it adds its own contribution to the message and passes it on; the last of these leaves segment Rank() complete, and in x. In the
// next N-1 hops what arrives is complete and is copied.
//
// A rank puts its own first segment on the ring a few chunks ahead of what it receives, and passes on each chunk at once. All do, so
// the i-th message from the left belongs to the same hop and chunk as the i-th that this rank has sent to the right.
func (g *group) ring(ctx context.Context, x []float32, r Reduction, hops int) error {
	if g.size == 1 {
		g.round(x, r.Wire)
		return nil
	}
	scale := float32(1)
	if r.Op == Mean {
		scale = 1 / float32(g.size)
	}
	left, right := g.peer(-1), g.peer(1)
	elems := chunkBytes / r.Wire.Bytes()
	_, longest := Segment(len(x), g.size, 0)
	chunks := (longest + elems - 1) / elems // of every segment: the last of a shorter one may be empty, and does not travel
	place := func(hop, i int) []float32 {
		lo, hi := Segment(len(x), g.size, g.peer(-1-hop))
		lo = min(lo+i*elems, hi)
		return x[lo:min(lo+elems, hi)]
	}
	sent := g.sent[:0]
	for received, own := 0, 0; received < hops*chunks; received++ {
		for ; own < chunks && own <= received+ahead; own++ {
			c := place(0, own)
			if r.Wire != kernels.F32 && scale != 1 {
				mul(c, scale)
			}
			if err := g.sendChunk(ctx, right, c, r.Wire); err != nil {
				return err
			}
			sent = append(sent, int32(own))
		}
		hop, i := int(sent[received])/chunks, int(sent[received])%chunks
		if hop+1 < hops {
			sent = append(sent, sent[received]+int32(chunks))
		}
		c := place(hop+1, i)
		if len(c) == 0 {
			continue
		}
		b, err := g.recv(ctx, left, len(c)*r.Wire.Bytes())
		if err != nil {
			return err
		}
		switch {
		case hop < g.size-1:
			last, after := hop == g.size-2, float32(1)
			if last {
				after = scale
			}
			combine(r, b, scale, c, after, last, &g.wide)
		default:
			unpack(c, b, r.Wire)
		}
		if hop+1 < hops {
			if err := g.m.Pass(ctx, right, b); err != nil {
				return err
			}
		} else {
			g.m.Release(b)
		}
	}
	g.sent = sent
	return nil
}

// collect brings every rank's reduced segment to root.
func (g *group) collect(ctx context.Context, x []float32, wire kernels.DType, root int) error {
	elems := chunkBytes / wire.Bytes()
	chunk := func(rank, i int) []float32 {
		lo, hi := Segment(len(x), g.size, rank)
		lo = min(lo+i*elems, hi)
		return x[lo:min(lo+elems, hi)]
	}
	if g.rank != root {
		for i := 0; ; i++ {
			c := chunk(g.rank, i)
			if len(c) == 0 {
				return nil
			}
			if err := g.sendChunk(ctx, root, c, wire); err != nil {
				return err
			}
		}
	}
	for d := 1; d < g.size; d++ {
		from := g.peer(d)
		for i := 0; ; i++ {
			c := chunk(from, i)
			if len(c) == 0 {
				break
			}
			b, err := g.recv(ctx, from, len(c)*wire.Bytes())
			if err != nil {
				return err
			}
			unpack(c, b, wire)
			g.m.Release(b)
		}
	}
	return nil
}

func (g *group) sendChunk(ctx context.Context, to int, c []float32, wire kernels.DType) error {
	if len(c) == 0 {
		return nil
	}
	if wire == kernels.F32 {
		return g.m.Send(ctx, to, bytesOf(c))
	}
	h := g.halves(len(c))
	kernels.ToHalf(wire, h, c)
	return g.m.Send(ctx, to, bytesOf(h))
}

// round makes x what it would be after a trip over the wire.
func (g *group) round(x []float32, wire kernels.DType) {
	if wire == kernels.F32 {
		return
	}
	const elems = chunkBytes / 2
	for ; len(x) > 0; x = x[min(elems, len(x)):] {
		c := x[:min(elems, len(x))]
		h := g.halves(len(c))
		kernels.ToHalf(wire, h, c)
		kernels.FromHalf(wire, c, h)
	}
}

func (g *group) halves(n int) []uint16 {
	if g.half == nil {
		g.half = make([]uint16, chunkBytes/2)
	}
	return g.half[:n]
}

func bytesOf[T float32 | uint16](x []T) []byte {
	var t T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(t)))
}

// numbers sees a received message, aligned to 8 bytes, as n numbers.
func numbers[T float32 | uint16](b []byte, n int) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}
