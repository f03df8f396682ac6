package web_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/tracing"
	"github.com/chromedp/chromedp"
)

// task is a task of the page's one thread.
type task struct {
	cpu  float64 // milliseconds that the thread ran, without those when another process did
	wall float64 // milliseconds from its beginning to its end
	what string  // the longest parts of it
}

// traceEvent is an event of a trace, its times in microseconds.
type traceEvent struct {
	Name    string  `json:"name"`
	Phase   string  `json:"ph"`
	Process int     `json:"pid"`
	Thread  int     `json:"tid"`
	Begin   float64 `json:"ts"`
	Wall    float64 `json:"dur"`
	CPU     float64 `json:"tdur"`
	Args    struct {
		Name string `json:"name"`
		Data struct {
			Function string `json:"functionName"`
			URL      string `json:"url"`
		} `json:"data"`
	} `json:"args"`
}

// tasks returns the tasks of the page's thread while something is done, the longest first.
func (b *tab) tasks(during func()) []task {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	var events []traceEvent // by the goroutine of the tab alone, until done is closed
	done := make(chan struct{})
	if err := chromedp.Listen(ctx, func(ev any) {
		switch ev := ev.(type) {
		case *tracing.EventDataCollected:
			for _, value := range ev.Value {
				var event traceEvent
				if json.Unmarshal(value, &event) == nil && (event.Phase == "M" || event.Wall > 1000) {
					events = append(events, event)
				}
			}
		case *tracing.EventTracingComplete:
			close(done)
		}
	}); err != nil {
		b.t.Fatal(err)
	}
	b.do(func(ctx context.Context, tt *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, tt, tracing.Start, tracing.StartParams{
			TransferMode: tracing.StartTransferModeReportEvents,
			TraceConfig:  &tracing.TraceConfig{IncludedCategories: []string{"devtools.timeline", "disabled-by-default-devtools.timeline", "v8"}, ExcludedCategories: []string{"*"}},
		})
		return chromedp.Void{}, err
	})
	during()
	b.do(func(ctx context.Context, tt *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, tt, tracing.End, cdp.Empty{})
		return chromedp.Void{}, err
	})
	<-done
	return tasksOf(events)
}

func tasksOf(events []traceEvent) []task {
	mains := map[[2]int]bool{}
	for _, e := range events {
		if e.Name == "thread_name" && e.Args.Name == "CrRendererMain" {
			mains[[2]int{e.Process, e.Thread}] = true
		}
	}
	var tasks []task
	for _, e := range events {
		if e.Phase != "X" || e.Name != "RunTask" || !mains[[2]int{e.Process, e.Thread}] {
			continue
		}
		var parts []string
		for _, part := range events {
			if part.Phase == "X" && part.Name != e.Name && part.CPU > 5000 && part.Process == e.Process && part.Thread == e.Thread && part.Begin >= e.Begin && part.Begin < e.Begin+e.Wall {
				file := part.Args.Data.URL[strings.LastIndex(part.Args.Data.URL, "/")+1:]
				parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s %s %s", part.Name, part.Args.Data.Function, file))+fmt.Sprintf(" %.0f ms", part.CPU/1000))
			}
		}
		tasks = append(tasks, task{e.CPU / 1000, e.Wall / 1000, strings.Join(parts, ", ")})
	}
	slices.SortFunc(tasks, func(a, b task) int { return cmp.Compare(b.cpu, a.cpu) })
	return tasks
}
