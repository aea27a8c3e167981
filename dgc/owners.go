package dgc

import (
	"context"
	"errors"
	"math"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/kernels"
)

// owners keeps the traffic of a top-k from growing with the number of ranks. Rank r owns segment r of the tensor. Entries go to their
// owner, which adds them to what it still owes there, selects its share again, and hands that to all. State: "owner".
//
// All segments have the same length, the last one padded with zeros that are never sent anywhere, so that all ranks know all sizes.
type owners struct {
	top    *topK
	again  *topK // of the segment
	n      int
	length int                  // of a segment
	owed   kernels.Buf[float32] // of this rank's segment, a mean over ranks
	split  compress.Split
	parts  []compress.Sparse
	sent   bool
}

func newOwners(top *topK, p compress.Part, t compress.Set) (*owners, error) {
	c := &owners{top: top, n: p.Len(), length: (p.Len() + t.Size - 1) / t.Size}
	segment := compress.Part{Name: p.Name, ID: p.ID, Shape: []int{c.length}}
	var errs [2]error
	c.again, errs[0] = newTopK(top.ratio, top.sparse.Values, segment, t)
	c.owed, errs[1] = kernels.NewBuf[float32](t.Dev, c.length)
	c.parts, c.split.To = make([]compress.Sparse, t.Size), make([]compress.Payload, t.Size)
	return c, errors.Join(errs[:]...)
}

func (c *owners) selected() *topK { return c.top }

func (c *owners) Start(ctx context.Context, s kernels.Stream, v kernels.Buf[float32]) (compress.Payload, error) {
	c.sent = false
	if _, err := c.top.Start(ctx, s, v); err != nil {
		return nil, err
	}
	p := &c.top.sparse
	room := min(p.Idx.Len(), c.length)
	for r := range c.parts {
		q := &c.parts[r]
		if q.Len.Len() == 0 {
			var err error
			if q.Len, err = kernels.NewBuf[uint32](c.top.dev, 1); err != nil {
				return nil, err
			}
		}
		if q.Idx.Len() != room {
			// Exactly: the room is what all ranks agree on.
			q.Idx.Free()
			q.Val.Free()
			var errs [2]error
			q.Idx, errs[0] = kernels.NewBuf[uint32](c.top.dev, room)
			q.Val, errs[1] = kernels.NewBuf[float32](c.top.dev, room)
			if err := errors.Join(errs[:]...); err != nil {
				return nil, err
			}
		}
		q.N, q.Values, q.Scale = c.length, p.Values, p.Scale
		kernels.SelectRange(s, q.Idx, q.Val, q.Len, p.Idx, p.Val, p.Len, r*c.length, (r+1)*c.length)
		c.split.To[r] = q
	}
	return &c.split, nil
}

func (c *owners) Next(ctx context.Context, s kernels.Stream, got compress.Received, out kernels.Buf[float32]) (compress.Payload, error) {
	if !c.sent {
		c.sent = true
		for i := range got.Sparse {
			p := &got.Sparse[i]
			kernels.ScatterAdd(s, c.owed, got.Scale, p.Idx, p.Val, p.Len)
		}
		c.again.ratio = c.top.ratio
		return c.again.Start(ctx, s, c.owed)
	}
	kernels.Zero(s, out)
	for r := range got.Sparse {
		p := &got.Sparse[r]
		lo := min(r*c.length, c.n)
		kernels.ScatterAdd(s, out.Slice(lo, min(lo+c.length, c.n)), 1, p.Idx, p.Val, p.Len)
	}
	return nil, nil
}

func (c *owners) State() []compress.NamedBuf {
	return []compress.NamedBuf{compress.Remember("owner", c.owed)}
}

// ownersPay estimates, from what all ranks know, whether going through owners sends fewer bytes than gathering.
func ownersPay(n, k int, values compress.Values, size int) bool {
	ranks := float64(size)
	segment := math.Ceil(float64(n) / ranks)
	gather := (ranks - 1) * values.ExpectedBytes(float64(n), float64(k))
	scatter := (ranks - 1) * (1 + values.ExpectedBytes(segment, float64(k)/ranks))
	handOut := (ranks - 1) * values.ExpectedBytes(segment, float64(keep(int(segment), float64(k)/float64(n))))
	return scatter+handOut < gather
}
