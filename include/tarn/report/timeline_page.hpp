// SPDX-License-Identifier: Apache-2.0
#pragma once
// The static HTML elements of the page, which the script fills. The policy in its head forbids every load.

namespace tarn::detail {

inline constexpr char html_head[] = R"html(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:;
    base-uri 'none'; form-action 'none'">
<link rel="icon" href="data:,">
<title>)html";

inline constexpr char html_body[] = R"html(</head>
<body>
<a class="skip" href="#over-time">Skip to the timeline</a>
<div id="main">
<header>
  <div>
    <p class="mark">tarn memory report</p>
    <h1 id="title"></h1>
    <p id="about" class="soft"></p>
  </div>
  <div class="group" role="group" aria-label="Colours">
    <button type="button" id="theme-auto" aria-pressed="true">Auto</button>
    <button type="button" id="theme-light" aria-pressed="false">Light</button>
    <button type="button" id="theme-dark" aria-pressed="false">Dark</button>
  </div>
</header>
<noscript><p class="card">This report draws itself with a script; please allow it.</p></noscript>
<main>
<section aria-label="Numbers"><dl id="tiles"></dl></section>

<section class="card" id="over-time" aria-labelledby="over-time-title">
  <div class="bar">
    <h2 id="over-time-title">Over time</h2>
    <div class="tools">
      <div class="group" role="group" aria-label="Live bytes shown">
        <button type="button" id="show-total" aria-pressed="true">Total</button>
        <button type="button" id="show-tags" aria-pressed="false">By tag</button>
      </div>
      <div class="group" role="group" aria-label="Curves beside live bytes">
        <button type="button" id="show-reserved" aria-pressed="true">Reserved</button>
        <button type="button" id="show-requested" aria-pressed="false">Requested</button>
      </div>
      <div class="group" id="axis" role="group" aria-label="Axis">
        <button type="button" id="axis-time" aria-pressed="true">Time</button>
        <button type="button" id="axis-calls" aria-pressed="false">Calls</button>
      </div>
      <div class="group" role="group" aria-label="Zoom">
        <button type="button" id="zoom-out" aria-label="Zoom out">−</button>
        <button type="button" id="zoom-in" aria-label="Zoom in">+</button>
        <button type="button" id="zoom-all">All</button>
      </div>
    </div>
  </div>
  <p id="chart-readout" class="readout"></p>
  <canvas id="chart" tabindex="0" role="application" aria-roledescription="timeline"
    aria-label="Live and reserved bytes over time" aria-describedby="chart-keys"></canvas>
  <canvas id="overview" aria-hidden="true"></canvas>
  <ul id="chart-legend" class="legend" aria-label="Colours of the timeline"></ul>
  <p id="chart-note" class="soft"></p>
  <p id="chart-keys" class="soft keys">Wheel zooms, drag pans, a click chooses a moment. Keys: <kbd>←</kbd> <kbd>→</kbd>
    move the moment, with <kbd>Shift</kbd> by one call; <kbd>+</kbd> <kbd>−</kbd> zoom; <kbd>Page&nbsp;Up</kbd>
    <kbd>Page&nbsp;Down</kbd> pan; <kbd>0</kbd> all; <kbd>P</kbd> the peak.</p>
  <div id="moment">
    <div class="bar">
      <h3 id="moment-title">Live at the peak</h3>
      <p id="moment-about" class="soft"></p>
      <button type="button" id="to-peak" hidden>Back to the peak</button>
    </div>
    <div class="columns">
      <div>
        <table class="plain"><caption>By tag</caption>
          <thead class="hidden"><tr><th scope="col">Tag</th><th scope="col">Bytes</th><th scope="col">Share</th>
            <th scope="col">Blocks</th></tr></thead>
          <tbody id="moment-tags"></tbody></table>
      </div>
      <div id="places-part">
        <table class="plain"><caption>By place</caption>
          <thead class="hidden"><tr><th scope="col">Place</th><th scope="col">Bytes</th><th scope="col">Share</th>
            <th scope="col">Blocks</th></tr></thead>
          <tbody id="moment-places"></tbody></table>
      </div>
      <div>
        <table class="plain"><caption>Largest blocks</caption>
          <thead class="hidden"><tr><th scope="col">Block</th><th scope="col">Bytes</th>
            <th scope="col">Share</th></tr></thead>
          <tbody id="moment-blocks"></tbody></table>
      </div>
    </div>
  </div>
</section>

<section class="card" id="address-range" aria-labelledby="address-range-title">
  <div class="bar">
    <h2 id="address-range-title">Addresses</h2>
    <div class="tools">
      <div class="group" role="group" aria-label="Colour blocks by">
        <button type="button" id="color-use" aria-pressed="true">Use</button>
        <button type="button" id="color-size" aria-pressed="false">Size</button>
        <button type="button" id="color-stream" aria-pressed="false">Stream</button>
        <button type="button" id="color-tag" aria-pressed="false">Tag</button>
      </div>
      <div class="group" role="group" aria-label="Bytes in a row">
        <button type="button" id="map-out" aria-label="More bytes in a row">−</button>
        <button type="button" id="map-in" aria-label="Fewer bytes in a row">+</button>
      </div>
    </div>
  </div>
  <p id="map-about" class="soft"></p>
  <div id="map-view">
    <p id="map-readout" class="readout"></p>
    <div id="map-scroll">
      <div id="map-space"><canvas id="map" tabindex="0" role="application" aria-roledescription="map"
        aria-label="Blocks by address" aria-describedby="map-keys"></canvas></div>
    </div>
    <ul id="map-legend" class="legend" aria-label="Colours of the map"></ul>
    <p id="map-keys" class="soft keys"><span id="map-scale"></span>. Keys: <kbd>←</kbd> <kbd>→</kbd> from block to
      block, <kbd>↑</kbd> <kbd>↓</kbd> by a row, <kbd>+</kbd> <kbd>−</kbd> bytes in a row.</p>
  </div>
</section>

<section class="card" id="tables" aria-labelledby="tables-title">
  <div class="bar">
    <h2 id="tables-title">Tables</h2>
    <div class="tabs" role="tablist" aria-labelledby="tables-title">
      <button type="button" role="tab" id="tab-tags" aria-controls="panel-tags">Tags</button>
      <button type="button" role="tab" id="tab-blocks" aria-controls="panel-blocks">Blocks</button>
      <button type="button" role="tab" id="tab-places" aria-controls="panel-places">Places</button>
      <button type="button" role="tab" id="tab-segments" aria-controls="panel-segments">Segments</button>
      <button type="button" role="tab" id="tab-numbers" aria-controls="panel-numbers">Numbers</button>
    </div>
  </div>
  <div role="tabpanel" id="panel-tags" aria-labelledby="tab-tags"></div>
  <div role="tabpanel" id="panel-blocks" aria-labelledby="tab-blocks" hidden></div>
  <div role="tabpanel" id="panel-places" aria-labelledby="tab-places" hidden></div>
  <div role="tabpanel" id="panel-segments" aria-labelledby="tab-segments" hidden></div>
  <div role="tabpanel" id="panel-numbers" aria-labelledby="tab-numbers" hidden></div>
</section>
</main>
<p id="spoken" class="hidden" role="status" aria-live="polite"></p>
</div>
)html";

}  // namespace tarn::detail
