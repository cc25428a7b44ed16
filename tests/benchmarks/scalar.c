/* A lane of the engine's first program (evaluator/stations/engine/fcfs_reserved) as a loop of scalar C: chunked
   prompts, KV reserved on admission, all terms of the cost of a dense model by its data sheet
   (evaluator/cost/iteration.py), the same results. It is what the compiled program is measured against, by scalar.py;
   names are those of the Python code. */

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { NONE = -1, WORD = 64, MANTISSA_BITS = 6, LOWEST_EXPONENT = -17, BINS = 28 << MANTISSA_BITS };

typedef struct {
    double flop, weight, activation, knee, waves, wave_s, tile_pass_s, crowd, crowded, padding, filled;
} Operator;
typedef struct {
    double flop, activation, knee, edge_s, traffic_s, tile, fill, cache;
} Attention;
typedef struct {
    double ramp, half, by_sequence;
} Ramp;
typedef struct {
    double iteration_s, token_s, sequence_s, context_s, spread_s, unsplit_s, late_s, late_decodes, late_beyond, decode_s,
        join_s, prefill_token_s, ramp_s, ramp_tokens, handover_s, handover_tokens, pieces_s, between_s, captured_tokens;
} Terms;
typedef struct {
    const Operator *token_rows, *sequence_rows;
    const Attention *prefill_rows;
    const Ramp *ramp_rows;
    const Terms *terms;
    int32_t token_count, sequence_count, prefill_count, ramp_count;
} Cost;
typedef struct {
    double max_num_seqs, max_num_batched_tokens, kv_units;
    int32_t requests, measured_from, ring;
} Limits;
typedef struct {
    const double *arrival_s; /* one more than requests, the last infinite */
    const int32_t *prompt_tokens, *output_tokens, *kv_units;
} Requests;
typedef struct {
    double *scheduled_s, *first_token_s, *last_token_s, *itl_histogram;
    double busy_s, iterations, kv_units_max, kv_unit_s;
} Result;
typedef struct { /* of a thread, used by one lane after the other */
    uint64_t *events;
    int32_t *leaving, *next_leaving;
} Rings;
typedef struct {
    double tokens, sequences, area, context;
} Prompts;

static double roofline(double flop_s, double byte_s, double knee) {
    double gap = flop_s - byte_s;
    return 0.5 * (flop_s + byte_s + sqrt(gap * gap + 4.0 * knee * knee * flop_s * byte_s + 1e-60));
}

static double whole_waves(double waves) { return waves > 0.5 ? ceil(waves) : waves > 0.25 ? 0.5 : waves; }

static double products_time(const Operator *row, int32_t count, double x) {
    double blocks = ceil(x / 128.0), time = 0.0;
    double height = 0.125 + 0.125 * (x > 32.0) + 0.25 * (x > 64.0) + 0.5 * (x > 128.0);
    for (const Operator *end = row + count; row < end; row++) {
        double flop = row->flop * x + row->padding + row->wave_s * whole_waves(row->waves * blocks);
        time += roofline(fmax(flop, row->tile_pass_s * height), row->weight + row->activation * x, row->knee);
    }
    return time;
}

static double attention_time(const Attention *row, const Prompts *prompts) {
    double tokens = prompts->tokens;
    double rows = fmax(row->tile * prompts->sequences, tokens + 0.5 * row->tile * prompts->sequences);
    double lack = row->fill / fmax(rows, 1.0);
    double work = (row->flop * prompts->area + row->edge_s * rows) * sqrt(1.0 + lack * lack);
    double much = tokens * tokens, little = row->cache * row->cache;
    double spilt = much * much / (much * much + little * little + 1e-30);
    return roofline(work, row->traffic_s * tokens * spilt + row->activation * prompts->context, row->knee);
}

static double decode_context_s(const Terms *terms, double decodes) {
    double per_decode = 1.0 / fmax(decodes, 1.0);
    double waiting = fmax(terms->late_decodes * per_decode, terms->late_beyond);
    double late_s = terms->late_s * fmin(decodes / terms->late_decodes, waiting);
    double split_s = terms->context_s + (terms->spread_s + late_s) * per_decode;
    return fmax(split_s, terms->unsplit_s * per_decode);
}

static double iteration_time(const Cost *cost, double decodes, double context, const Prompts *prompts) {
    const Terms *terms = cost->terms;
    double tokens = decodes + prompts->tokens, sequences = decodes + prompts->sequences;
    double time = terms->iteration_s + terms->token_s * tokens + terms->sequence_s * sequences
        + decode_context_s(terms, decodes) * context + terms->decode_s * decodes + terms->join_s * fmin(decodes, 1.0)
        + terms->prefill_token_s * prompts->tokens + terms->ramp_s * tokens / (tokens + terms->ramp_tokens)
        + terms->handover_s * (tokens >= terms->handover_tokens)
        + products_time(cost->token_rows, cost->token_count, tokens)
        + products_time(cost->sequence_rows, cost->sequence_count, sequences);
    if (prompts->tokens > 0.0) /* an iteration without prompts has no such attention */
        for (int32_t row = 0; row < cost->prefill_count; row++)
            time += attention_time(cost->prefill_rows + row, prompts);
    for (const Ramp *row = cost->ramp_rows, *end = row + cost->ramp_count; row < end; row++) {
        double units = tokens + row->by_sequence * (sequences - tokens);
        time += row->ramp * units / (units + row->half + 1e-9);
    }
    double launched = terms->pieces_s + (tokens > terms->captured_tokens) * terms->between_s;
    return prompts->tokens > 0.0 ? fmax(time, launched) : time;
}

static double area(double n) { return 0.5 * n * (n + 1.0); }

static void enter(double *bins, double gap_s, double count) {
    int64_t bits;
    memcpy(&bits, &gap_s, sizeof bits);
    int64_t bin = (bits >> (52 - MANTISSA_BITS)) - ((1023 + LOWEST_EXPONENT) << MANTISSA_BITS);
    bins[bin < 0 ? 0 : bin >= BINS ? BINS - 1 : bin] += count;
}

static int32_t steps_to_event(const uint64_t *events, int32_t step, int32_t ring) {
    int32_t slot = (step + 1) % ring;
    uint64_t near = events[slot / WORD] >> (slot % WORD), far = events[(slot / WORD + 1) % (ring / WORD)];
    if (near) return 1 + __builtin_ctzll(near);
    return 1 + WORD - slot % WORD + (far ? __builtin_ctzll(far) : WORD);
}

static double iterations_until(double wait_s, double first_s, double slope_s) {
    double b = first_s - 0.5 * slope_s;
    return ceil(2.0 * wait_s / (b + sqrt(b * b + 2.0 * slope_s * wait_s)) - 1e-6);
}

void run_lane(const Cost *cost, const Limits *limits, const Requests *requests, const Rings *rings, Result *result) {
    const int32_t ring = limits->ring, count = limits->requests;
    memset(rings->events, 0, (size_t)(ring / WORD) * sizeof *rings->events);
    memset(rings->leaving, 0xff, (size_t)ring * sizeof *rings->leaving); /* NONE */
    memset(result->itl_histogram, 0, BINS * sizeof *result->itl_histogram);
    for (int32_t i = 0; i < count; i++)
        result->scheduled_s[i] = result->first_token_s[i] = result->last_token_s[i] = INFINITY;
    double clock = 0.0, progress = 0.0, decodes = 0.0, context = 0.0, kv = 0.0, gap_from = 0.0;
    double busy_s = 0.0, iterations = 0.0, kv_most = 0.0, kv_unit_s = 0.0;
    int32_t head = 0, first_gap = 0, step = 0, horizon = 0;
    while (head < count || decodes > 0.0) {
        double now = decodes == 0.0 && progress == 0.0 ? fmax(clock, requests->arrival_s[head]) : clock;
        /* admission: the head of the waiting queue, until one does not go in completely */
        Prompts prompts = {0};
        double joined = 0.0, joined_context = 0.0, next_arrival = INFINITY;
        const int32_t before = head;
        int waits = 0, budget_left = 0;
        while (head < count) {
            const double prompt = requests->prompt_tokens[head], units = requests->kv_units[head];
            double rest = prompt - progress, budget = limits->max_num_batched_tokens - decodes - prompts.tokens;
            double share = fmin(rest, budget);
            budget_left = share > 0.0;
            if (!(share > 0.0 && (progress > 0.0 || kv + units <= limits->kv_units)
                  && decodes + joined + 1.0 <= limits->max_num_seqs))
                break;
            if (requests->arrival_s[head] > now) {
                waits = 1;
                next_arrival = requests->arrival_s[head];
                break;
            }
            if (progress == 0.0) {
                kv += units;
                result->scheduled_s[head] = now;
            }
            prompts.tokens += share;
            prompts.sequences += 1.0;
            prompts.area += area(progress + share) - area(progress);
            prompts.context += progress + share;
            progress += share;
            budget_left = 0; /* for a part of a prompt, or none */
            if (share < rest) break;
            int32_t last = (step + requests->output_tokens[head]) % ring;
            rings->next_leaving[head] = rings->leaving[last];
            rings->leaving[last] = head;
            rings->events[last / WORD] |= UINT64_C(1) << (last % WORD);
            joined += 1.0;
            joined_context += prompt + 1.0;
            progress = 0.0;
            head++;
        }
        if (prompts.tokens == 0.0 && decodes == 0.0) break; /* who waits can never be admitted */
        /* one iteration, or as many as pass before the batch changes */
        double first_s = iteration_time(cost, decodes, context, &prompts);
        double slope_s = decode_context_s(cost->terms, decodes) * decodes;
        int32_t steps = 1, seen = horizon;
        /* The program goes on behind an iteration with prompts in the same trip, and looks for events once for both. */
        horizon = prompts.tokens > 0.0 && budget_left ? steps_to_event(rings->events, step, ring) - 1 : 0;
        if (prompts.tokens == 0.0) {
            steps = steps_to_event(rings->events, step, ring);
            if (seen > 0 && seen < steps) steps = seen;
            if (waits) {
                double until = iterations_until(fmax(next_arrival - now, 0.0), first_s, slope_s);
                if (until < steps) steps = until > 1.0 ? (int32_t)until : 1;
            }
        }
        double took_s = steps * first_s + 0.5 * slope_s * steps * (steps - 1.0);
        double end_s = now + took_s, first_end_s = now + first_s;
        for (int32_t i = before; i < head; i++) result->first_token_s[i] = first_end_s;
        /* gaps between tokens */
        double weight = before > limits->measured_from, entered = 0.0;
        for (int32_t i = first_gap; i < before; i++) {
            double runs = requests->output_tokens[i] > 1;
            enter(result->itl_histogram, first_end_s - result->first_token_s[i], runs * weight);
            entered += runs;
        }
        enter(result->itl_histogram, first_end_s - gap_from, weight * (decodes - entered));
        if (steps > 1) {
            double running = head > limits->measured_from ? decodes : 0.0;
            enter(result->itl_histogram, (end_s - first_end_s) / (steps - 1.0), running * (steps - 1.0));
        }
        gap_from = end_s;
        first_gap = steps > 1 ? head : before;
        busy_s += took_s;
        iterations += steps;
        kv_most = fmax(kv_most, kv);
        context += steps * decodes + joined_context;
        decodes += joined;
        /* departures */
        step += steps;
        int32_t slot = step % ring;
        for (int32_t i = rings->leaving[slot]; i != NONE; i = rings->next_leaving[i]) {
            result->last_token_s[i] = end_s;
            kv_unit_s += requests->kv_units[i] * (end_s - result->scheduled_s[i]);
            context -= (double)requests->prompt_tokens[i] + requests->output_tokens[i];
            kv -= requests->kv_units[i];
            decodes -= 1.0;
        }
        rings->leaving[slot] = NONE;
        rings->events[slot / WORD] &= ~(UINT64_C(1) << (slot % WORD));
        clock = end_s;
    }
    result->busy_s = busy_s;
    result->iterations = iterations;
    result->kv_units_max = kv_most;
    result->kv_unit_s = kv_unit_s;
}
