// Package quant holds the methods that send few bits of every entry: 1-bit SGD, threshold quantisation, TernGrad, int8 by block and the
// plain casts.
package quant

import (
	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/kernels"
)

// Register adds onebit, threshold, terngrad, int8, fp16 and bf16 with their defaults.
func Register(r *compress.Registry) {
	compress.Register(r, "onebit", "1-bit SGD: a sign an entry and two means a group, the rest later (Seide et al. 2014)",
		OneBitConfig{Exchange: compress.Auto}, compress.Feedback, NewOneBit)
	compress.Register(r, "threshold", "plus or minus tau where more than tau has gathered, the rest later (Strom 2015)",
		ThresholdConfig{Tau: 0.003}, compress.Feedback, NewThreshold)
	compress.Register(r, "terngrad", "TernGrad: unbiased random ternaries times one scale a tensor (Wen et al. 2017)",
		TernGradConfig{Clip: 2.5}, compress.None, NewTernGrad)
	compress.Register(r, "int8", "one byte an entry and one scale a block, the rest later",
		Int8Config{Block: 256, Exchange: compress.Auto}, compress.Feedback, NewInt8)
	compress.Register(r, "fp16", "every gradient whole, in IEEE half precision; over 65504 is infinite", CastConfig{}, compress.None, newCast(kernels.F16))
	compress.Register(r, "bf16", "every gradient whole, in bfloat16", CastConfig{}, compress.None, newCast(kernels.BF16))
}

// byOwner tells whether to go through owners. Auto does where that sends fewer bytes: 2(N-1)/N payloads against N-1.
func byOwner(how compress.Exchange, ranks int) bool {
	return how == compress.Twophase || how == compress.Auto && ranks > 2
}

// lift serves a set with an algorithm that is written for one tensor and offers one full Packed a step.
func lift(how compress.Exchange, mk func(compress.Part, compress.Set) (compress.Compressor, error)) func(compress.Set) (compress.Compressor, error) {
	return func(t compress.Set) (compress.Compressor, error) {
		if byOwner(how, t.Size) {
			return compress.TwoPhase(func(shard compress.Set) (compress.Compressor, error) { return mk(shard.Parts[0], shard) })(t)
		}
		return compress.PerPart(mk)(t)
	}
}
