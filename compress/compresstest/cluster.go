// Package compresstest holds the laws that every compression method must obey, and a slow, obvious exchange to check them with.
package compresstest

import (
	"context"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/kernels"
)

// Cluster is N ranks that serve the same tensors in one process, in lock step.
type Cluster struct {
	T       testing.TB
	Ranks   []compress.Compressor
	Streams []kernels.Stream
	InPlace bool       // the result replaces the gradient, as in a reducer's bucket
	Sent    [][]uint32 // every rank's indices of all Sparse payloads of the last step
	n       int
}

// NewCluster makes size ranks with mk on dev.
func NewCluster(t testing.TB, mk func(compress.Set) (compress.Compressor, error), dev kernels.Device, size int, seed uint64, parts ...compress.Part) *Cluster {
	c := &Cluster{T: t}
	for r := range size {
		set := compress.Set{Parts: parts, Rank: r, Size: size, Seed: seed, Dev: dev}
		c.n = set.Len()
		comp, err := mk(set)
		require.NoError(t, err)
		s, err := dev.NewStream()
		require.NoError(t, err)
		c.Ranks, c.Streams = append(c.Ranks, comp), append(c.Streams, s)
	}
	return c
}

// Step runs one step on every rank's gradient and returns every rank's mean and what is left in v.
func (c *Cluster) Step(grads [][]float32) (means, left [][]float32) {
	ctx, t := context.Background(), c.T
	n := len(c.Ranks)
	v, out := make([]kernels.Buf[float32], n), make([]kernels.Buf[float32], n)
	payloads := make([]compress.Payload, n)
	for r, comp := range c.Ranks {
		v[r] = c.buf(r, grads[r])
		if out[r] = v[r]; !c.InPlace {
			out[r] = c.buf(r, make([]float32, c.n))
		}
		var err error
		payloads[r], err = comp.Start(ctx, c.Streams[r], v[r])
		require.NoError(t, err)
	}
	c.Sent = make([][]uint32, n)
	for round := 0; payloads[0] != nil; round++ {
		require.Less(t, round, 10, "a step of so many rounds does not end")
		got := c.exchange(payloads)
		for r, comp := range c.Ranks {
			var err error
			payloads[r], err = comp.Next(ctx, c.Streams[r], got[r], out[r])
			require.NoError(t, err)
			require.Equal(t, payloads[0] == nil, payloads[r] == nil, "all ranks must end in the same round")
		}
	}
	for r := range c.Ranks {
		means, left = append(means, c.read(r, out[r])), append(left, c.read(r, v[r]))
	}
	return means, left
}

func (c *Cluster) buf(r int, x []float32) kernels.Buf[float32] { return buf(c, r, x) }

func buf[E kernels.Elem](c *Cluster, r int, x []E) kernels.Buf[E] {
	b, err := kernels.NewBuf[E](c.Streams[r].Device(), len(x))
	require.NoError(c.T, err)
	kernels.Write(c.Streams[r], b, x)
	return b
}

func (c *Cluster) read(r int, b kernels.Buf[float32]) []float32 { return read(c.T, c.Streams[r], b) }

func read[E kernels.Elem](t testing.TB, s kernels.Stream, b kernels.Buf[E]) []E {
	x := make([]E, b.Len())
	require.NoError(t, kernels.Read(context.Background(), s, x, b))
	return x
}

// exchange delivers one round to every rank: the reference for the engine in hooks.
func (c *Cluster) exchange(payloads []compress.Payload) []compress.Received {
	t, n := c.T, len(payloads)
	got := make([]compress.Received, n)
	switch payloads[0].(type) {
	case *compress.Many:
		for r := range got {
			got[r].Many = make([]compress.Received, len(payloads[r].(*compress.Many).Of))
		}
		for i, p := range payloads[0].(*compress.Many).Of {
			if p == nil {
				continue
			}
			leaf := make([]compress.Payload, n)
			for r := range leaf {
				leaf[r] = payloads[r].(*compress.Many).Of[i]
			}
			for r, g := range c.exchange(leaf) {
				got[r].Many[i] = g
			}
		}
	case *compress.Linear:
		var sum []float64
		wire := payloads[0].(*compress.Linear).Wire
		for r, p := range payloads {
			x := c.read(r, p.(*compress.Linear).X)
			cast(wire, x)
			if sum == nil {
				sum = make([]float64, len(x))
			}
			for i, xi := range x {
				sum[i] += float64(xi) / float64(n)
			}
		}
		mean := make([]float32, len(sum))
		for i := range mean {
			mean[i] = float32(sum[i])
		}
		cast(wire, mean)
		for r := range got {
			got[r].Mean = c.buf(r, mean)
		}
	case *compress.Sparse:
		c.note(payloads)
		for r := range got {
			got[r] = c.deliver(r, payloads, payloads[r])
		}
	case *compress.Packed:
		for r := range got {
			got[r] = c.deliver(r, payloads, payloads[r])
		}
	case *compress.Split:
		for r := range got {
			parcels := make([]compress.Payload, n)
			for from, p := range payloads {
				parcels[from] = p.(*compress.Split).To[r]
			}
			got[r] = c.deliver(r, parcels, payloads[r].(*compress.Split).To[r])
		}
	default:
		t.Fatalf("payload of type %T", payloads[0])
	}
	return got
}

// deliver brings what every rank sent to rank r, whose own payload is like them.
func (c *Cluster) deliver(r int, payloads []compress.Payload, like compress.Payload) compress.Received {
	got := compress.Received{Scale: 1 / float32(len(payloads))}
	for from, p := range payloads {
		switch p := p.(type) {
		case *compress.Sparse:
			got.Sparse = append(got.Sparse, c.decodeSparse(r, c.encodeSparse(from, p), like.(*compress.Sparse)))
		case *compress.Packed:
			got.Packed = append(got.Packed, c.pass(from, r, p, like.(*compress.Packed)))
		}
	}
	return got
}

// note keeps the indices that every rank sends.
func (c *Cluster) note(payloads []compress.Payload) {
	for r, p := range payloads {
		q := p.(*compress.Sparse)
		k := read(c.T, c.Streams[r], q.Len)[0]
		c.Sent[r] = append(c.Sent[r], read(c.T, c.Streams[r], q.Idx)[:k]...)
	}
}

// cast rounds x as it crosses the wire.
func cast(wire kernels.DType, x []float32) {
	if wire != kernels.F32 {
		h := make([]uint16, len(x))
		kernels.ToHalf(wire, h, x)
		kernels.FromHalf(wire, x, h)
	}
}

func (c *Cluster) encodeSparse(r int, p *compress.Sparse) []byte {
	s := c.Streams[r]
	k := int(read(c.T, s, p.Len)[0])
	require.True(c.T, !p.Full || k == p.Idx.Len(), "a full payload must be full")
	idx := read(c.T, s, p.Idx)[:k]
	return compress.AppendSparse(nil, p, idx, read(c.T, s, p.Val)[:k], c.scale(r, p))
}

func (c *Cluster) scale(r int, p *compress.Sparse) float32 {
	if p.Scale.Len() == 0 {
		return 0
	}
	return c.read(r, p.Scale)[0]
}

func (c *Cluster) decodeSparse(r int, b []byte, like *compress.Sparse) compress.Sparse {
	room := like.Idx.Len()
	idx, val := make([]uint32, room), make([]float32, room)
	k, rest, err := compress.DecodeSparse(b, like, idx, val, c.scale(r, like))
	require.NoError(c.T, err)
	require.Empty(c.T, rest)
	return compress.Sparse{N: like.N, Idx: buf(c, r, idx), Val: c.buf(r, val), Len: buf(c, r, []uint32{uint32(k)})}
}

// pass carries a Packed from one rank to another.
func (c *Cluster) pass(from, to int, p, like *compress.Packed) kernels.Buf[uint8] {
	require.Equal(c.T, like.Room(), p.Room(), "room must be equal on all ranks")
	b := read(c.T, c.Streams[from], p.B)
	if !p.Full {
		b = b[:read(c.T, c.Streams[from], p.Len)[0]]
	}
	require.True(c.T, like.Sizes == nil || len(b) == like.Sizes[from], "another size than announced")
	out := make([]byte, like.Size(from))
	n, rest, err := compress.DecodePacked(compress.AppendPacked(nil, p, b), like, out)
	require.NoError(c.T, err)
	require.Empty(c.T, rest)
	require.Equal(c.T, b, out[:n])
	return buf(c, to, out[:n])
}

// State reads the float32 state "part/name" of every rank, the parts laid end to end.
func (c *Cluster) State(name string) [][]float32 {
	all := make([][]float32, len(c.Ranks))
	for r, comp := range c.Ranks {
		for _, b := range comp.State() {
			if b.Count == nil && strings.HasSuffix(b.Name, "/"+name) {
				all[r] = append(all[r], c.floats(r, b)...)
			}
		}
	}
	return all
}

// PartState reads one float32 state of one rank.
func (c *Cluster) PartState(r int, name string) []float32 {
	for _, b := range c.Ranks[r].State() {
		if b.Name == name {
			return c.floats(r, b)
		}
	}
	c.T.Fatalf("rank %d has no state %q", r, name)
	return nil
}

func (c *Cluster) floats(r int, b compress.NamedBuf) []float32 {
	raw := read(c.T, c.Streams[r], b.Buf)
	x := make([]float32, len(raw)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return x
}
