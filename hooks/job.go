package hooks

import (
	"errors"
	"fmt"
	"time"

	"github.com/gradpress/gradpress/collective"
	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/ddp"
	"github.com/gradpress/gradpress/kernels"
)

// job is a bucket on its way.
type job struct {
	b       *ddp.Bucket
	spans   []served
	guarded bool // a non-finite gradient would do harm
	dense   bool // and there is one
	err     error

	// One round.
	payloads []compress.Payload
	got      []compress.Received
	linears  []linear
	gathers  boxes
	splits   boxes
	msg      compress.Encoder   // for everybody
	parcels  []compress.Encoder // for each rank
	sending  [][]byte           // the parcels' messages
}

// served is a compressor and the gradients that it serves.
type served struct {
	set  compress.Set
	c    compress.Compressor
	grad kernels.Buf[float32]
}

// linear is a payload to be all-reduced: a Linear, or a Sparse written out.
type linear struct {
	x    kernels.Buf[float32]
	wire kernels.DType
	got  *compress.Received
}

// box is a payload to be gathered or, of a Split, the part for this rank, with room for what every rank sends.
type box struct {
	name   string
	like   compress.Payload // *Sparse or *Packed
	split  *compress.Split
	got    *compress.Received
	idx    []kernels.Buf[uint32]
	val    []kernels.Buf[float32]
	n      []kernels.Buf[uint32]
	packed []kernels.Buf[uint8]
	k      int // entries that the rank sends which is being decoded
}

// boxes keep the rooms of earlier steps beyond their length.
type boxes []box

func (b *boxes) add() *box {
	if n := len(*b); n < cap(*b) {
		*b = (*b)[:n+1]
	} else {
		*b = append(*b, box{})
	}
	return &(*b)[len(*b)-1]
}

// stage is where devices whose memory the host cannot see are copied to and from, one set a goroutine.
type stage struct {
	flag        []uint32
	front, back lane
}

type lane struct {
	idx, n     []uint32
	val, scale []float32
	bytes      []byte
}

// encode lists the leaves of a round's payloads and encodes all that are to be gathered into one message, all that are to be scattered
// into one for each rank.
func (e *Engine) encode(j *job, s kernels.Stream) error {
	j.linears, j.gathers, j.splits = j.linears[:0], j.gathers[:0], j.splits[:0]
	for i := range j.spans {
		sp := &j.spans[i]
		e.list(j, s, "", j.payloads[i], &j.got[i], sp.grad, sp.set.Parts)
	}
	st := &e.stage.back
	if s == e.front {
		st = &e.stage.front
	}
	j.msg.Reset()
	for i := range j.gathers {
		if err := e.append(&j.msg, j.gathers[i].like, s, st); err != nil {
			return err
		}
	}
	if len(j.splits) == 0 {
		return nil
	}
	if j.parcels == nil {
		j.parcels, j.sending = make([]compress.Encoder, e.cfg.Data.Size()), make([][]byte, e.cfg.Data.Size())
	}
	for r := range j.parcels {
		j.parcels[r].Reset()
		for i := range j.splits {
			if err := e.append(&j.parcels[r], j.splits[i].split.To[r], s, st); err != nil {
				return err
			}
		}
		j.sending[r] = j.parcels[r].Message()
	}
	return nil
}

// append brings a payload to the host and encodes it.
func (e *Engine) append(to *compress.Encoder, p compress.Payload, s kernels.Stream, st *lane) error {
	if p, ok := p.(*compress.Packed); ok {
		n := p.B.Len()
		if !p.Full {
			used, err := kernels.View(e.ctx, s, p.Len, &st.n)
			if err != nil {
				return err
			}
			n = int(used[0])
		}
		b, err := kernels.View(e.ctx, s, p.B.Slice(0, n), &st.bytes)
		if err == nil {
			to.Packed(p, b)
		}
		return err
	}
	q := p.(*compress.Sparse)
	n, err := kernels.View(e.ctx, s, q.Len, &st.n)
	if err != nil {
		return err
	}
	k := int(n[0])
	idx, err := kernels.View(e.ctx, s, q.Idx.Slice(0, k), &st.idx)
	if err != nil {
		return err
	}
	val, err := kernels.View(e.ctx, s, q.Val.Slice(0, k), &st.val)
	if err != nil {
		return err
	}
	scale, err := e.scale(q, s, st)
	if err == nil {
		to.Sparse(q, idx, val, scale)
	}
	return err
}

func (e *Engine) scale(p *compress.Sparse, s kernels.Stream, st *lane) (float32, error) {
	if p.Scale.Len() == 0 {
		return 0, nil
	}
	x, err := kernels.View(e.ctx, s, p.Scale, &st.scale)
	if err != nil {
		return 0, err
	}
	return x[0], nil
}

// list walks a payload and, beside it, the place for what will be received.
func (e *Engine) list(j *job, s kernels.Stream, name string, p compress.Payload, got *compress.Received, out kernels.Buf[float32], parts []compress.Part) {
	switch p := p.(type) {
	case nil:
	case *compress.Many:
		if len(got.Many) != len(p.Of) {
			got.Many = make([]compress.Received, len(p.Of))
		}
		for i, q := range p.Of {
			if p.At == nil {
				e.list(j, s, name, q, &got.Many[i], kernels.Buf[float32]{}, nil)
				continue
			}
			e.list(j, s, parts[i].Name, q, &got.Many[i], out.Slice(p.At[i], p.At[i+1]), parts[i:i+1])
		}
	case *compress.Linear:
		j.linears = append(j.linears, linear{p.X, p.Wire, got})
	case *compress.Sparse:
		if e.goesDense(p) && out.Len() == p.N {
			kernels.Zero(s, out)
			kernels.ScatterAdd(s, out, 1, p.Idx, p.Val, p.Len)
			j.linears = append(j.linears, linear{out, kernels.F32, got})
			return
		}
		b := j.gathers.add()
		b.name, b.like, b.got = name, p, got
	case *compress.Packed:
		b := j.gathers.add()
		b.name, b.like, b.got = name, p, got
	case *compress.Split:
		b := j.splits.add()
		b.name, b.like, b.split, b.got = name, p.To[e.cfg.Data.Rank()], p, got
	default:
		panic(fmt.Sprintf("hooks: payload of type %T", p))
	}
}

// goesDense tells, from what all ranks know, that an all-reduce of the whole tensor sends fewer bytes than every rank's entries to all. Of a
// payload that is not full nobody knows how many will come.
func (e *Engine) goesDense(p *compress.Sparse) bool {
	ranks := float64(e.cfg.Data.Size())
	return p.Full && ranks*p.Values.ExpectedBytes(float64(p.N), float64(p.Idx.Len())) >= 2*float64(4*p.N)
}

// exchange runs one round's collectives: an all-reduce for each wire type, one gather, one all-to-all. What came is valid until the next.
func (e *Engine) exchange(j *job) error {
	bytes := 0
	for wire := kernels.F32; wire <= kernels.BF16; wire++ {
		n, err := e.reduce(j, wire)
		if err != nil {
			return err
		}
		bytes += n * wire.Bytes()
	}
	if len(j.gathers) > 0 {
		msg := j.msg.Message()
		bytes += len(msg)
		msgs, err := e.cfg.Data.AllGather(e.ctx, msg)
		if err != nil {
			return err
		}
		if err := e.decode(j.gathers, msgs); err != nil {
			return err
		}
	}
	if len(j.splits) > 0 {
		for r, b := range j.sending {
			if r != e.cfg.Data.Rank() { // what a rank keeps it does not offer
				bytes += len(b)
			}
		}
		msgs, err := e.cfg.Data.AllToAll(e.ctx, j.sending)
		if err != nil {
			return err
		}
		if err := e.decode(j.splits, msgs); err != nil {
			return err
		}
	}
	e.count(func(s *Stats) { s.PayloadBytes += int64(bytes) })
	return nil
}

// reduce averages everything that travels in one wire type, in place where it lies end to end, and returns how many elements it had.
func (e *Engine) reduce(j *job, wire kernels.DType) (n int, err error) {
	var whole kernels.Buf[float32]
	joined := true
	for i := range j.linears {
		l := &j.linears[i]
		if l.wire != wire || l.x.Len() == 0 {
			continue
		}
		switch next, ok := kernels.Join(whole, l.x); {
		case n == 0:
			whole = l.x
		case joined && ok:
			whole = next
		default:
			joined = false
		}
		n += l.x.Len()
	}
	if !joined {
		if whole, err = e.fuse(j, wire, n); err != nil {
			return 0, err
		}
	}
	if n > 0 {
		if err := e.cfg.Data.AllReduce(e.ctx, e.back, whole, collective.Reduction{Op: collective.Mean, Wire: wire}); err != nil {
			return 0, err
		}
	}
	at := 0
	for i := range j.linears {
		if l := &j.linears[i]; l.wire == wire {
			// The same window where nothing was copied.
			l.got.Mean, l.got.Sparse = l.x, nil
			if l.x.Len() > 0 {
				l.got.Mean = whole.Slice(at, at+l.x.Len())
			}
			at += l.x.Len()
		}
	}
	return n, nil
}

// fuse copies all payloads of a wire type together.
func (e *Engine) fuse(j *job, wire kernels.DType, n int) (kernels.Buf[float32], error) {
	buf := e.fused[wire]
	if buf.Len() < n {
		if err := kernels.Resize(e.cfg.Dev, &buf, n); err != nil {
			return buf, err
		}
		e.fused[wire] = buf
	}
	at := 0
	for i := range j.linears {
		if l := &j.linears[i]; l.wire == wire {
			kernels.Copy(e.back, buf.Slice(at, at+l.x.Len()), l.x)
			at += l.x.Len()
		}
	}
	return buf.Slice(0, n), nil
}

// decode turns every rank's message into what the compressors receive. An error names the rank and the tensor.
func (e *Engine) decode(list boxes, msgs [][]byte) error {
	t0 := time.Now()
	for i := range list {
		if err := e.room(&list[i]); err != nil {
			return err
		}
	}
	for r, msg := range msgs {
		if where, err := e.unpack(list, r, msg); err != nil {
			return fmt.Errorf("hooks: payload of rank %d: %s%w", r, where, err)
		}
	}
	e.count(func(s *Stats) {
		s.Decode += time.Since(t0)
		s.Exchange -= time.Since(t0) // within which this happened
	})
	return nil
}

// room makes place for every rank's payload.
func (e *Engine) room(b *box) error {
	size, dev := e.cfg.Data.Size(), e.cfg.Dev
	if p, ok := b.like.(*compress.Packed); ok {
		if b.packed == nil {
			b.packed = make([]kernels.Buf[uint8], size)
		}
		if cap(b.got.Packed) < size {
			b.got.Packed = make([]kernels.Buf[uint8], size)
		}
		b.got.Packed = b.got.Packed[:size]
		for r := range b.packed {
			if err := kernels.Resize(dev, &b.packed[r], p.Room()); err != nil {
				return err
			}
		}
		return nil
	}
	k := b.like.(*compress.Sparse).Idx.Len()
	if b.idx == nil {
		b.idx, b.val, b.n = make([]kernels.Buf[uint32], size), make([]kernels.Buf[float32], size), make([]kernels.Buf[uint32], size)
	}
	if cap(b.got.Sparse) < size {
		b.got.Sparse = make([]compress.Sparse, size)
	}
	b.got.Sparse, b.got.Scale = b.got.Sparse[:size], 1/float32(size)
	for r := range size {
		err := errors.Join(kernels.Resize(dev, &b.idx[r], k), kernels.Resize(dev, &b.val[r], k), kernels.Resize(dev, &b.n[r], 1))
		if err != nil {
			return err
		}
	}
	return nil
}

// unpack decodes the message of rank r. With an error it returns where it is from, in front of it.
func (e *Engine) unpack(list boxes, r int, msg []byte) (where string, err error) {
	d, st := &e.decoder, &e.stage.back
	if err := d.Reset(msg); err != nil {
		return "", err
	}
	for i := range list {
		b := &list[i]
		p, ok := b.like.(*compress.Sparse)
		if !ok {
			continue
		}
		err := kernels.Fill(e.back, b.idx[r].Slice(0, p.Idx.Len()), &st.idx, func(x []uint32) (err error) {
			b.k, err = d.Head(p, x)
			return err
		})
		if err != nil {
			return b.name + ": ", err
		}
		st.n = append(st.n[:0], uint32(b.k))
		kernels.Write(e.back, b.n[r], st.n)
	}
	if err := d.Body(); err != nil {
		return "", err
	}
	for i := range list {
		b := &list[i]
		if err := e.unpackValues(b, r); err != nil {
			return b.name + ": ", err
		}
	}
	return "", d.End()
}

func (e *Engine) unpackValues(b *box, r int) error {
	d, st := &e.decoder, &e.stage.back
	if p, ok := b.like.(*compress.Packed); ok {
		got := 0
		err := kernels.Fill(e.back, b.packed[r].Slice(0, p.Size(r)), &st.bytes, func(x []byte) (err error) {
			got, err = d.Packed(p, x)
			return err
		})
		b.got.Packed[r] = b.packed[r].Slice(0, got)
		return err
	}
	p := b.like.(*compress.Sparse)
	scale, err := e.scale(p, e.back, st)
	if err != nil {
		return err
	}
	k := p.Idx.Len()
	b.got.Sparse[r] = compress.Sparse{N: p.N, Idx: b.idx[r].Slice(0, k), Val: b.val[r].Slice(0, k), Len: b.n[r]}
	return kernels.Fill(e.back, b.val[r].Slice(0, b.k), &st.val, func(x []float32) error { return d.Values(p, x, scale) })
}
