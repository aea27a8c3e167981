// Package ratio measures what a step of a compression method sends for the layer shapes of a model: the method, the engine and the
// encoding are the real ones, the gradients are drawn, and one rank stands for all.
package ratio

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/ddp"
	"github.com/gradpress/gradpress/eval/shapes"
	"github.com/gradpress/gradpress/hooks"
	"github.com/gradpress/gradpress/kernels"
	"github.com/gradpress/gradpress/transport"
)

// Ranks are the group sizes for which the wire ratio is given. The payload is that of a rank in the first.
var Ranks = [3]int{4, 16, 64}

// Config is one measurement.
type Config struct {
	Model  shapes.Model
	Method compress.Method
	// TwoPhase is the same method with its traffic by owner; nil where it has no such thing.
	TwoPhase *compress.Method
	Seed     uint64
}

// Row is what was measured. Fields that do not apply are null. Bytes are those of a step after the first, without warm-up.
type Row struct {
	Model      string `json:"model"`
	Parameters int    `json:"parameters"`
	Method     string `json:"method"`

	PayloadBytes int64 `json:"payload_bytes"`
	// PayloadRatio is 4 bytes a parameter over PayloadBytes; CompressedRatio is the same for the tensors that the method serves one by one.
	PayloadRatio    float64  `json:"payload_ratio"`
	CompressedRatio *float64 `json:"payload_ratio_compressed"`
	// IndexBits is how long the code of an index is; IndexFloor is H(p)/p, the least for evenly spread ones.
	IndexBits  *float64 `json:"index_bits"`
	IndexFloor *float64 `json:"index_bits_floor"`

	// Wire ratios are what the busiest rank of 4, 16 or 64 sends in dense ring all-reduce over what it sends with the method as it is
	// written, and with its traffic by owner.
	Wire4      float64  `json:"wire_ratio_4"`
	Wire16     float64  `json:"wire_ratio_16"`
	Wire64     float64  `json:"wire_ratio_64"`
	TwoPhase4  *float64 `json:"wire_ratio_two_phase_4"`
	TwoPhase16 *float64 `json:"wire_ratio_two_phase_16"`
	TwoPhase64 *float64 `json:"wire_ratio_two_phase_64"`

	PaperRatio *float64 `json:"dgc_paper_ratio"`
	Seconds    float64  `json:"seconds"`
}

// Measure runs the method on drawn gradients. It needs as much memory as a rank that trains with the method, and gives it back.
func Measure(ctx context.Context, c Config) (*Row, error) {
	defer debug.FreeOSMemory() // the next model may need it all
	start := time.Now()
	src := newSource(c.Seed)
	row := &Row{Model: c.Model.Name, Parameters: c.Model.Len(), Method: c.Method.Text}
	if c.Model.Paper > 0 {
		row.PaperRatio = &c.Model.Paper
	}
	wire := [len(Ranks)]*float64{&row.Wire4, &row.Wire16, &row.Wire64}
	twoPhase := [len(Ranks)]**float64{&row.TwoPhase4, &row.TwoPhase16, &row.TwoPhase64}
	for i, size := range Ranks {
		u, err := step(ctx, c.Model.Tensors, c.Method, size, src)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			if err := row.payload(ctx, c, src, u); err != nil {
				return nil, err
			}
		}
		*wire[i] = float64(u.dense) / float64(u.sent)
		if c.TwoPhase != nil {
			if u, err = step(ctx, c.Model.Tensors, *c.TwoPhase, size, src); err != nil {
				return nil, err
			}
			*twoPhase[i] = over(float64(u.dense), float64(u.sent))
		}
	}
	row.Seconds = time.Since(start).Seconds()
	return row, nil
}

func over(a, b float64) *float64 {
	q := a / b
	return &q
}

// payload fills in what does not depend on the number of ranks.
func (row *Row) payload(ctx context.Context, c Config, src *source, u usage) error {
	row.PayloadBytes = u.payload
	row.PayloadRatio = 4 * float64(row.Parameters) / float64(u.payload)
	bits, floor, k := 0.0, 0.0, 0
	for _, x := range u.indices {
		bits, floor, k = bits+float64(x.bits), floor+compress.IndexFloor(float64(x.n), float64(x.k)), k+x.k
	}
	if k > 0 {
		row.IndexBits, row.IndexFloor = over(bits, float64(k)), over(floor, float64(k))
	}
	if u.served == 0 {
		return nil
	}
	small := shapes.Model{Tensors: u.small}
	rest := 4 * int64(small.Len()) // dense
	if c.Method.Small != nil {
		// A pool has a bucket of its own, and takes alone what it takes beside the others.
		alone, err := step(ctx, u.small, c.Method, Ranks[0], src)
		if err != nil {
			return err
		}
		rest = alone.payload
	}
	row.CompressedRatio = over(4*float64(u.served), float64(u.payload-rest))
	return nil
}

// usage is what a rank does in one step.
type usage struct {
	payload int64
	sent    int64           // bytes on the wire
	dense   int64           // bytes on the wire for dense ring all-reduce of the same buckets
	indices []indices       // of each sparse payload
	served  int             // parameters in tensors that the method serves one by one
	small   []shapes.Tensor // the others
}

// steps is how many are run; the last counts, so that the method's memory is not empty.
const steps = 2

// step measures one rank of size ranks.
func step(ctx context.Context, tensors []shapes.Tensor, m compress.Method, size int, src *source) (u usage, err error) {
	runtime.GC() // the last one had as much
	params := make([]ddp.Param, len(tensors))
	for i, t := range tensors {
		params[i] = ddp.Param(t)
	}
	data, control := &mirror{size: size}, &mirror{size: size}
	ruler := &ruler{}
	engine, err := hooks.Compressed(ctx, hooks.Config{Dev: kernels.CPU(), Data: data, Control: control, Seed: src.seed}, ruler.around(m))
	if err != nil {
		return u, err
	}
	defer engine.Close()
	classes, err := engine.Plan(params)
	if err != nil {
		return u, err
	}
	for i, t := range tensors {
		if classes[i].Name == m.Text {
			u.served += t.Len()
		} else {
			u.small = append(u.small, t)
		}
	}
	reducer, err := ddp.New(params, engine, ddp.Config{Dev: kernels.CPU()})
	if err != nil {
		return u, err
	}
	var before hooks.Stats
	for i := range steps {
		before, ruler.noted = engine.Stats(), nil
		data.traffic, control.traffic = transport.Traffic{}, transport.Traffic{}
		for j := len(params) - 1; j >= 0; j-- {
			g, _ := kernels.Host(reducer.Grad(j))
			src.fill(g, params[j].Name, i)
			if err := reducer.Ready(j); err != nil {
				return u, err
			}
		}
		if err := reducer.Wait(ctx); err != nil {
			return u, err
		}
	}
	u.payload = engine.Stats().Sub(before).PayloadBytes
	u.sent, u.indices = data.traffic.Add(control.traffic).SentBytes, ruler.noted
	for _, b := range reducer.Buckets() {
		u.dense += data.hops(b.Grad.Len(), 4, 2*(size-1)).SentBytes
	}
	return u, nil
}
