package model

import "math"

// crossEntropy returns, for rows of class scores in nats, the sum of -log softmax(row)[label] and how
// often the label has the first highest score. It replaces the scores by scale times the loss's
// gradient in them, softmax(row) - onehot(label).
func crossEntropy(scores []float32, classes int, labels []int32, scale float32) (loss float64, correct int) {
	for r, label := range labels {
		row := scores[r*classes:][:classes]
		best := 0
		for i, v := range row {
			if v > row[best] {
				best = i
			}
		}
		if best == int(label) {
			correct++
		}
		top := row[best]
		toLabel := float64(row[label] - top)
		var sum float64
		for i, v := range row {
			e := math.Exp(float64(v - top))
			sum += e
			row[i] = float32(e)
		}
		loss += math.Log(sum) - toLabel
		norm := scale * float32(1/sum)
		for i := range row {
			row[i] *= norm
		}
		row[label] -= scale
	}
	return loss, correct
}
