package hooks

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/ddp"
	"github.com/gradpress/gradpress/kernels"
)

// Recorder is told what an Engine does. Its methods are called from several goroutines.
type Recorder interface {
	Span(Span)
	Step(Counters)
}

// Category is what a Span was spent on.
type Category uint8

// Backward is until a bucket's last gradient came; Compress is Start and encoding; Exchange is the collectives of a round, waiting for other
// ranks included; Decode is decoding, Next and encoding for a further round; Agree is the flag for non-finite gradients, which travels on the
// control group.
const (
	Backward Category = iota
	Compress
	Exchange
	Decode
	Agree
)

func (c Category) String() string {
	return [...]string{"backward", "compress", "exchange", "decode", "agree"}[c]
}

// Span is a stretch of time that one bucket took. A category has at most one span at a time on a rank.
type Span struct {
	Rank, Bucket, Step int
	Category           Category
	Start              time.Time
	Duration           time.Duration
}

// Counters are what happened on a rank between the ends of two steps.
type Counters struct {
	Rank, Step int
	// PayloadBytes, DenseBytes and NonFinite are as in Stats. Ratio is DenseBytes over PayloadBytes.
	PayloadBytes, DenseBytes, NonFinite int64
	Ratio                               float64
	// Density is how many numbers were offered, over the number of gradients: entries of what is sparse, factors of what is of low rank.
	// What is Packed counts whole.
	Density float64
	// Residual is the largest magnitude of what is owed, where Config.Residuals asks for it.
	Residual float64
	// Backward is from the first gradient to the last, Wait what the caller waited after that.
	Backward, Compress, Exchange, Decode, Wait time.Duration
	// Overlap is the share of min(Backward, Exchange) in which both went on at once, 0 where there is nothing to hide.
	Overlap float64
}

// watch is what an Engine with a Recorder notes down.
type watch struct {
	to      Recorder
	rank    int
	step    []int     // of each bucket, under way; used by whoever has the bucket
	filled  time.Time // of the last bucket
	inStep  int       // whose step that was
	before  Stats
	numbers int64   // offered since then
	owed    float64 // largest since then
	wires   []Span  // exchanges since then
	mu      sync.Mutex
}

// bind makes room for n buckets, all at the step that the first one had.
func (w *watch) bind(n int) {
	if w == nil {
		return
	}
	at := -1
	if len(w.step) > 0 {
		at = w.step[0]
	}
	w.step = make([]int, n)
	for i := range w.step {
		w.step[i] = at
	}
}

// begin counts a bucket's step and records its backward pass, which began when the bucket before was full.
func (w *watch) begin(b *ddp.Bucket) {
	if w == nil {
		return
	}
	w.step[b.Index]++
	if b.Filled.IsZero() {
		return // backward had no part in it
	}
	from := b.Began
	if w.inStep == w.step[b.Index] && !w.filled.IsZero() {
		from = w.filled
	}
	w.span(b, Backward, from, b.Filled)
	if b.Filled.After(from) {
		w.filled, w.inStep = b.Filled, w.step[b.Index]
	}
}

func (w *watch) span(b *ddp.Bucket, c Category, from, to time.Time) {
	if w == nil || !to.After(from) {
		return
	}
	s := Span{w.rank, b.Index, w.step[b.Index], c, from, to.Sub(from)}
	if c == Exchange {
		w.mu.Lock()
		w.wires = append(w.wires, s)
		w.mu.Unlock()
	}
	w.to.Span(s)
}

// offered counts the numbers of a payload that serves n gradients. s has synced.
func (w *watch) offered(ctx context.Context, s kernels.Stream, p compress.Payload, n int, stage *[]uint32) error {
	if w == nil {
		return nil
	}
	sum, err := numbers(ctx, s, p, n, stage)
	w.mu.Lock()
	w.numbers += int64(sum)
	w.mu.Unlock()
	return err
}

func numbers(ctx context.Context, s kernels.Stream, p compress.Payload, n int, stage *[]uint32) (sum int, err error) {
	switch p := p.(type) {
	case *compress.Linear:
		return p.X.Len(), nil
	case *compress.Sparse:
		used, err := kernels.View(ctx, s, p.Len, stage)
		if err != nil {
			return 0, err
		}
		return int(used[0]), nil
	case *compress.Packed, *compress.Split:
		return n, nil
	case *compress.Many:
		for i, q := range p.Of {
			part := 0
			if p.At != nil {
				part = p.At[i+1] - p.At[i]
			}
			k, err := numbers(ctx, s, q, part, stage)
			if err != nil {
				return 0, err
			}
			sum += k
		}
	}
	return sum, nil
}

// owes notes the largest magnitude of what the compressors of a bucket owe.
func (w *watch) owes(ctx context.Context, s kernels.Stream, spans []served) error {
	for _, sp := range spans {
		for _, b := range sp.c.State() {
			if !strings.HasSuffix(b.Name, "/residual") && !strings.HasSuffix(b.Name, "/v") {
				continue
			}
			raw := make([]byte, b.Buf.Len())
			if err := kernels.Read(ctx, s, raw, b.Buf); err != nil {
				return err
			}
			top := 0.0
			for i := 0; i+4 <= len(raw); i += 4 {
				top = max(top, math.Abs(float64(math.Float32frombits(binary.NativeEndian.Uint32(raw[i:])))))
			}
			w.mu.Lock()
			w.owed = max(w.owed, top)
			w.mu.Unlock()
		}
	}
	return nil
}

// stepped closes the books on a step.
func (w *watch) stepped(t ddp.Timing, now Stats) {
	if w == nil {
		return
	}
	w.mu.Lock()
	d := now.Sub(w.before)
	c := Counters{Rank: w.rank, Step: t.Step, PayloadBytes: d.PayloadBytes, DenseBytes: d.DenseBytes, NonFinite: d.NonFinite, Residual: w.owed,
		Backward: t.Last.Sub(t.First), Compress: d.Compress, Exchange: d.Exchange, Decode: d.Decode, Wait: t.Wait}
	if d.PayloadBytes > 0 {
		c.Ratio = float64(d.DenseBytes) / float64(d.PayloadBytes)
	}
	if d.DenseBytes > 0 {
		c.Density = float64(w.numbers) / float64(d.DenseBytes/4)
	}
	c.Overlap = overlap(w.wires, t.First, t.Last)
	w.before, w.numbers, w.owed, w.wires = now, 0, 0, w.wires[:0]
	w.mu.Unlock()
	w.to.Step(c)
}

// overlap is the share of the shorter of the window and the spans in which both are.
func overlap(spans []Span, first, last time.Time) float64 {
	var busy, both time.Duration
	for _, s := range spans {
		busy += s.Duration
		from, to := s.Start, s.Start.Add(s.Duration)
		if from.Before(first) {
			from = first
		}
		if to.After(last) {
			to = last
		}
		both += max(0, to.Sub(from))
	}
	if least := min(busy, last.Sub(first)); least > 0 {
		return float64(both) / float64(least)
	}
	return 0
}

// Memory is a Recorder that keeps what it is told of steps From and later, of Limit steps at most unless that is 0.
type Memory struct {
	From, Limit int

	mu    sync.Mutex
	spans []Span
	steps []Counters
}

func (m *Memory) wants(step int) bool {
	return step >= m.From && (m.Limit == 0 || step < m.From+m.Limit)
}

// Span keeps s.
func (m *Memory) Span(s Span) {
	if m.wants(s.Step) {
		m.mu.Lock()
		m.spans = append(m.spans, s)
		m.mu.Unlock()
	}
}

// Step keeps c.
func (m *Memory) Step(c Counters) {
	if m.wants(c.Step) {
		m.mu.Lock()
		m.steps = append(m.steps, c)
		m.mu.Unlock()
	}
}

// Spans is what has been kept so far.
func (m *Memory) Spans() []Span {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Span(nil), m.spans...)
}

// Steps is what has been kept so far.
func (m *Memory) Steps() []Counters {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Counters(nil), m.steps...)
}

// Log is a Recorder that writes each step at level Info and each span at level Debug.
type Log struct{ To *slog.Logger }

// Span writes s.
func (l Log) Span(s Span) {
	l.To.LogAttrs(context.Background(), slog.LevelDebug, s.Category.String(), slog.Int("rank", s.Rank), slog.Int("step", s.Step),
		slog.Int("bucket", s.Bucket), slog.Time("start", s.Start), slog.Duration("duration", s.Duration))
}

// Step writes c.
func (l Log) Step(c Counters) {
	l.To.LogAttrs(context.Background(), slog.LevelInfo, "step", slog.Int("rank", c.Rank), slog.Int("step", c.Step),
		slog.Int64("payload_bytes", c.PayloadBytes), slog.Int64("dense_bytes", c.DenseBytes), slog.Float64("ratio", c.Ratio),
		slog.Float64("density", c.Density), slog.Float64("residual", c.Residual), slog.Int64("nonfinite", c.NonFinite),
		slog.Duration("backward", c.Backward), slog.Duration("compress", c.Compress), slog.Duration("exchange", c.Exchange),
		slog.Duration("decode", c.Decode), slog.Duration("wait", c.Wait), slog.Float64("overlap", c.Overlap))
}
